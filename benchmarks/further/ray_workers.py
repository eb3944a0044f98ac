"""Workers that Ray places, beside Ray Data on the same work; where the package ``ray`` is there.

Both have a Ray of their own on this machine and 2 actors, each with a core. Ray Data is set up as
its documentation advises for samples that a class must read: `map_batches` with that class, which
holds the dataset, on batches of the size that `iter_torch_batches` then hands out, so that nothing
is cut anew; its shuffle is off, which costs it nothing then, while ours is on.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import fresh
from benchmarks.datasets import NB_SAMPLES, cut_jpegs
from benchmarks.figures import Figure, over
from benchmarks.further.pairs import measure_in_turn
from benchmarks.measure import batches_per_s
from benchmarks.workloads import Workload, table_workloads

_BAR = 1.5
_NB_WORKER = 2
_WINDOW_S = 3.0
_QUICK_WINDOW_S = 1.5
_WARM_S = 2.0
_LIMIT_S = 120.0
_STORE_BYTES = 2 << 30


@contextmanager
def _ray_of_its_own() -> Iterator[None]:
    import ray

    ray.init(
        num_cpus=_NB_WORKER + 1,  # one more than the actors: Ray Data's source is a task
        object_store_memory=_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}},
    )
    try:
        yield
    finally:
        ray.shutdown()


def ours(workload: Workload, window_s: float) -> dict[str, float]:
    """A SwiftLoader whose workers are actors."""
    from benchmarks.ours import batches
    from swift_loader.remote import RayWorkers

    with (
        _ray_of_its_own(),
        batches(workload, 0, remote_workers=RayWorkers(_NB_WORKER)) as stream,
    ):
        return batches_per_s(stream, window_s, _WARM_S)


class _Fetch:
    """Samples by number, for `map_batches`: two columns, as all of these workloads have."""

    def __init__(self, workload: Workload) -> None:
        self._dataset = workload.dataset(as_torch=False)

    def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
        samples = [self._dataset[int(index)] for index in rows["id"]]
        return {
            "x": np.stack([sample for sample, _ in samples]),
            "index": np.array([index for _, index in samples]),
        }


def ray_data(workload: Workload, window_s: float) -> dict[str, float]:
    """Ray Data's ``iter_torch_batches``."""
    with _ray_of_its_own():
        import ray.data

        ray.data.DataContext.get_current().enable_progress_bars = False
        batches = (
            ray.data.range(NB_SAMPLES)
            .map_batches(
                _Fetch,
                fn_constructor_args=(workload,),
                batch_size=workload.batch_size,
                compute=ray.data.ActorPoolStrategy(size=_NB_WORKER),
                num_cpus=1,
            )
            .iter_torch_batches(batch_size=workload.batch_size)
        )
        return batches_per_s(chain.from_iterable(repeat(batches)), window_s, _WARM_S)


def run(is_quick: bool, out: Path) -> list[Figure]:
    """Our rate over Ray Data's."""
    if find_spec("ray") is None:
        return []
    window_s = _QUICK_WINDOW_S if is_quick else _WINDOW_S
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        cut_jpegs(Path(folder))
        workloads = table_workloads(folder)
        for name in ("image-u8", "jpeg"):
            probes = {
                who: partial(function, workload=workloads[name], window_s=window_s)
                for who, function in (("ours", ours), ("Ray Data", ray_data))
            }
            rounds = measure_in_turn(
                f"ray, {name}", probes, is_quick, partial(fresh.call, timeout_s=_LIMIT_S)
            )
            mine, theirs = (rounds.column(who, "batches_per_s") for who in probes)
            if mine and theirs:
                figures.append(over("ray", f"{name}: batches/s over Ray Data", mine, theirs, _BAR))
    return figures


if __name__ == "__main__":
    from benchmarks.command import main

    main(["--only", "ray"])
