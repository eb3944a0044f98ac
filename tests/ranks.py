"""Runs a function in real processes that are the ranks of a gloo group, with a time limit."""

from __future__ import annotations

import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.multiprocessing

__all__ = ["run_ranks"]


def run_ranks(nb_rank: int, fn: Callable[..., Any], *args: Any, timeout_s: float = 60) -> list[Any]:
    """What `fn(rank, *args)` returned in each rank; an exception that it raised is returned too.

    A rank that dies gives None. Fails where a rank is still there after `timeout_s`.
    """
    # Forked from a process without threads, which has imported what takes time.
    context = torch.multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["torch.distributed", "swift_loader.dataloader2", "swift_loader.loader.loader"]
    )
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=_rank, args=(rank, nb_rank, folder, fn, args), daemon=True)
            for rank in range(nb_rank)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(timeout_s)
        hanging = [process.name for process in ranks if process.is_alive()]
        for process in ranks:
            process.kill()
            process.join()
        assert not hanging, f"{hanging} did not end within {timeout_s:g} s"
        paths = [Path(folder, str(rank)) for rank in range(nb_rank)]
        return [pickle.loads(path.read_bytes()) if path.exists() else None for path in paths]


def _rank(rank: int, nb_rank: int, folder: str, fn: Callable[..., Any], args: Any) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(folder, "store"), nb_rank)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=nb_rank)
    try:
        result = fn(rank, *args)
    except Exception as error:  # noqa: BLE001 it is what the test looks at
        traceback.print_exc()
        result = error
    Path(folder, f"{rank}.part").write_bytes(pickle.dumps(result))
    os.rename(os.path.join(folder, f"{rank}.part"), os.path.join(folder, str(rank)))
    # Not a wait for the other ranks: one of them may be dead.
    os._exit(0)
