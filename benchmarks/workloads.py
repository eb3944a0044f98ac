"""The nine workloads of the table, as plain data that can travel to a fresh process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.datasets import Images, Jpegs, ManyTensors, Rows, Text, Tokens


@dataclass(frozen=True)
class Workload:
    """What a loader is asked to do, and for how long it is watched.

    `in_order=False` asks for batches as they become ready. `shuffle` is a full permutation; it is
    off where the cost of the samples differs, so that every loader makes the same ones. `per_core`
    marks work that a core does by itself, whose limit is that of one process times the cores. The
    window opens after `warm_s` seconds and `warm_batches` batches, whichever is later: by then
    queues have settled and whatever memory a loader reuses has been used once.
    """

    name: str
    dataset_class: Any
    batch_size: int
    dataset_kwargs: Mapping[str, Any] = field(default_factory=dict)
    in_order: bool = True
    shuffle: bool = True
    in_memory: bool = True
    per_core: bool = False
    warm_s: float = 0.3
    warm_batches: int = 24
    window_s: float = 0.7

    def dataset(self, as_torch: bool = True) -> Any:
        """Build the dataset, handing out tensors or numpy arrays."""
        return self.dataset_class(**self.dataset_kwargs, as_torch=as_torch)


def table_workloads(jpeg_folder: str) -> dict[str, Workload]:
    """The workloads by name; `jpeg_folder` holds what :func:`cut_jpegs` wrote."""
    heavy: dict[str, Any] = {"per_core": True, "warm_s": 0.6, "warm_batches": 8, "window_s": 2.0}
    workloads = [
        Workload("image-u8", Images, 64, {"dtype": "uint8"}),
        Workload("image-f32", Images, 64, {"dtype": "float32"}),
        Workload("tokens", Tokens, 32),
        Workload("tabular", Rows, 256),
        Workload("tiny", Rows, 8),
        Workload("many", ManyTensors, 16),
        Workload("jpeg", Jpegs, 64, {"folder": jpeg_folder}, in_memory=False, **heavy),
        Workload("python", Text, 32, **heavy),
        Workload(
            "uneven, first-ready",
            Text,
            32,
            {"slow_every": 100},
            in_order=False,
            shuffle=False,
            **(heavy | {"window_s": 4.0}),
        ),
    ]
    return {workload.name: workload for workload in workloads}
