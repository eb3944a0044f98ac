"""Who is measured: each contestant's name and the function that opens its stream of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

from benchmarks.workloads import Workload

OpenBatches = Callable[[Workload, int], AbstractContextManager[Iterator[Any]]]

OURS = "swift_loader"
TORCH = "torch DataLoader"
BARE = "bare slots"
LIMIT = "limit"


@dataclass(frozen=True)
class Contestant:
    """`module` and `function` open the batches; `package` must be installed for it.

    `only_light`: runs only where the samples themselves cost next to nothing.
    """

    name: str
    package: str
    module: str
    function: str = "batches"
    only_first_ready: bool = False
    only_light: bool = False
    is_slow_to_start: bool = False

    @property
    def is_installed(self) -> bool:
        return find_spec(self.package) is not None

    def runs(self, workload: Workload) -> bool:
        """Whether this contestant takes part in `workload`."""
        return not (
            (self.only_first_ready and workload.in_order) or (self.only_light and workload.per_core)
        )

    def open(self) -> OpenBatches:
        """Import the contestant; only the process that measures it does."""
        return cast(OpenBatches, getattr(import_module(self.module), self.function))


CONTESTANTS = {
    contestant.name: contestant
    for contestant in [
        Contestant(OURS, "swift_loader", "benchmarks.ours"),
        Contestant(BARE, "torch", "benchmarks.bare_slots", only_light=True),
        Contestant(TORCH, "torch", "benchmarks.peers.torch_dataloader"),
        Contestant(
            "torch DataLoader, first-ready",
            "torch",
            "benchmarks.peers.torch_dataloader",
            "batches_first_ready",
            only_first_ready=True,
        ),
        Contestant("StatefulDataLoader", "torchdata", "benchmarks.peers.stateful_dataloader"),
        Contestant("SPDL, threads", "spdl", "benchmarks.peers.spdl_pipeline", "batches_of_threads"),
        Contestant(
            "SPDL, subprocess", "spdl", "benchmarks.peers.spdl_pipeline", "batches_of_subprocess"
        ),
        Contestant(
            "SPDL, processes",
            "spdl",
            "benchmarks.peers.spdl_pipeline",
            "batches_of_processes",
            is_slow_to_start=True,
        ),
        Contestant("grain", "grain", "benchmarks.peers.grain_processes", is_slow_to_start=True),
    ]
}
PEERS = [name for name in CONTESTANTS if name not in (OURS, BARE)]
