"""The names of the RPCDataloader package, on the endpoints of `swift_loader.remote`.

A script written for that package runs with its import changed. What differs: connections persist
and carry many requests at a time; a batch of a lost worker is made by another one; and as a worker
runs whatever it is sent, one that listens beyond its own machine needs a key, whose file the
environment's `SWIFT_LOADER_KEY` names on both sides (see ``swift-loader keygen``).
"""

from swift_loader.rpcdataloader.dataloader import RPCDataloader, RPCDataset
from swift_loader.rpcdataloader.rpc import rpc_async
from swift_loader.rpcdataloader.worker import run_worker, set_random_seeds

__all__ = ["RPCDataloader", "RPCDataset", "rpc_async", "run_worker", "set_random_seeds"]
