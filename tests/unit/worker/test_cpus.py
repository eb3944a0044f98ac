"""The number of CPUs that is really available: affinity, quotas of containers, Slurm, torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from swift_loader.worker.cpus import CpuLimits, available_cpus, cpu_limits

WHOLE = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def limits(tmp_path: Path, groups: str, files: dict[str, str], **environ: str) -> CpuLimits:
    proc = tmp_path / "cgroup"
    proc.write_text(groups)
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return cpu_limits(environ, proc, tmp_path / "fs")


def test_quota_of_a_container_is_found_at_its_root(tmp_path: Path) -> None:
    found = limits(tmp_path, "0::/\n", {"cpu.max": "150000 100000\n"})
    assert found.quota_cpus == 1.5
    assert found.cpus == 1


def test_smallest_quota_on_the_way_up_holds(tmp_path: Path) -> None:
    found = limits(
        tmp_path,
        "0::/slice/job/step\n",
        {
            "cpu.max": "max 100000\n",
            "slice/cpu.max": "800000 100000\n",
            "slice/job/cpu.max": "300000 100000\n",
            "slice/job/step/cpu.max": "max 100000\n",
        },
    )
    assert found.quota_cpus == 3.0


def test_group_of_the_host_that_the_container_can_not_see_does_no_harm(tmp_path: Path) -> None:
    found = limits(tmp_path, "0::/kubepods/pod1\n", {"cpu.max": "200000 100000\n"})
    assert found.quota_cpus == 2.0


def test_version_1_quota_is_read(tmp_path: Path) -> None:
    files = {"cpu/job/cpu.cfs_quota_us": "250000\n", "cpu/job/cpu.cfs_period_us": "100000\n"}
    files |= {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}
    found = limits(tmp_path, "3:cpuset:/\n2:cpu,cpuacct:/job\n0::/\n", files)
    assert found.quota_cpus == 2.5


def test_without_limits_affinity_counts(tmp_path: Path) -> None:
    found = limits(tmp_path, "0::/\n", {})
    assert found.quota_cpus is None
    assert found.slurm_cpus is None
    assert found.cpus == len(os.sched_getaffinity(0))


def test_without_control_groups_affinity_counts(tmp_path: Path) -> None:
    found = cpu_limits({}, tmp_path / "none", tmp_path / "nowhere")
    assert found.cpus == len(os.sched_getaffinity(0))


def test_slurm_and_torchrun_divide_further() -> None:
    assert CpuLimits(64, 64, None, 16, 1).cpus == 16
    assert CpuLimits(64, 64, None, None, 4).cpus == 16
    assert CpuLimits(64, 8, 6.5, 16, 2).cpus == 3
    assert CpuLimits(1, 1, 0.5, None, 8).cpus == 1


@pytest.mark.parametrize("text", ["", "many", "-1", "0"])
def test_nonsense_in_the_environment_is_no_limit(tmp_path: Path, text: str) -> None:
    found = limits(tmp_path, "0::/\n", {}, SLURM_CPUS_PER_TASK=text, LOCAL_WORLD_SIZE=text)
    assert found.slurm_cpus is None
    assert found.nb_processes == 1


def test_limits_say_where_they_come_from() -> None:
    text = str(CpuLimits(64, 8, 6.5, 16, 2))
    assert text == (
        "64 in the machine, 8 by affinity, 6.5 by the container's quota, 16 by Slurm, shared by 2 "
        "training processes"
    )


def test_process_bound_to_one_cpu_has_one() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from swift_loader.worker.cpus import available_cpus; print(available_cpus())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "1"
    assert available_cpus() >= 1


BOUND = """
import json, os
import torch
from swift_loader import SwiftLoader
from swift_loader.worker.cpus import available_cpus

class Where:
    def __len__(self): return 4
    def __getitem__(self, i): return sorted(os.sched_getaffinity(0))

options = {"batch_size": 1, "collate_fn": list, "worker_per_consumer": 2, "validate": False}
own, last = os.sched_getaffinity(0), max(json.loads(os.environ["WHOLE"]))
one_cpu = {**options, "worker_affinity": [last]}
with SwiftLoader(Where, **options) as free, SwiftLoader(Where, **one_cpu) as one:
    seen = [sorted({tuple(batch[0]) for batch in loader}) for loader in (free, one)]
print(json.dumps([sorted(own), available_cpus(), *seen]))
"""


@pytest.mark.skipif(len(WHOLE) < 2, reason="needs two CPUs to tell them apart")
def test_workers_of_a_process_that_openmp_has_bound_use_all_cpus() -> None:
    environ = {**os.environ, "OMP_PROC_BIND": "true", "WHOLE": json.dumps(WHOLE)}
    run = subprocess.run(
        [sys.executable, "-c", BOUND],
        env=environ,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    own, count, free, one = json.loads(run.stdout)
    assert len(own) < len(WHOLE)
    assert count >= min(2, available_cpus())
    assert free == [WHOLE]
    assert one == [[max(WHOLE)]]
