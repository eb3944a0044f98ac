#!/bin/bash
# Training on a GPU node, workers on two CPU nodes: one heterogeneous job.
#
#   swift-loader keygen ~/cluster.key        # once; your home is the same on all nodes
#   sbatch slurm_heterogeneous.sh
#
# train.py passes the addresses on:
#   SwiftLoader(..., worker_per_consumer=4,
#               remote_workers=os.environ["LOADER_ENDPOINTS"].split(),
#               remote_key=os.environ["SWIFT_LOADER_KEY"])
#
# component 0: the training
#SBATCH --job-name=train
#SBATCH --time=04:00:00
#SBATCH --nodes=1 --ntasks-per-node=1 --cpus-per-task=8 --gpus-per-node=1
#SBATCH hetjob
# component 1: the workers
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=32

set -euo pipefail
export SWIFT_LOADER_KEY="$HOME/cluster.key"
port=$((20000 + SLURM_JOB_ID % 20000)) # jobs that share a node don't collide

nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST_HET_GROUP_1")
LOADER_ENDPOINTS=$(for node in $nodes; do echo -n "tcp://$node:$port "; done)
export LOADER_ENDPOINTS

srun --het-group=1 swift-loader serve \
    --bind "tcp://0.0.0.0:$port" --workers 32 --metrics &
endpoints=$!

# The loader waits for endpoints that are not up yet, up to remote_timeout. When training ends, the
# endpoints are told to (SIGTERM), and end at once.
trap 'kill "$endpoints" 2>/dev/null; wait "$endpoints" || true' EXIT
srun --het-group=0 python train.py
