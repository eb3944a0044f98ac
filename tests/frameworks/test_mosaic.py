"""Mosaic's data sets, in its MDS format: by index, as a stream, and in a group of ranks."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.device_mesh import init_device_mesh

from swift_loader import SwiftLoader
from tests.process.test_meshes import workers_of_this_process
from tests.ranks import run_ranks

streaming = pytest.importorskip(
    "streaming", reason="needs mosaicml-streaming, whose requirements are many"
)
pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.filterwarnings("ignore:divide by zero encountered:RuntimeWarning"),
]

N = 25


@pytest.fixture
def folder(tmp_path: Path) -> str:
    columns = {"x": "int", "text": "str"}
    with streaming.MDSWriter(out=str(tmp_path / "mds"), columns=columns, size_limit=200) as writer:
        for i in range(N):
            writer.write({"x": i, "text": f"row {i}"})
    return str(tmp_path / "mds")


def numbers(batch: Any) -> list[int]:
    assert batch["text"] == [f"row {x}" for x in batch["x"].tolist()]
    found: list[int] = batch["x"].tolist()
    return found


def test_mds_has_indices_and_resumes_with_another_number_of_workers(folder: str) -> None:
    def loader(workers: int) -> SwiftLoader[Any]:
        dataset = streaming.LocalDataset(local=folder)
        return SwiftLoader(dataset, batch_size=4, worker_per_consumer=workers, shuffle=True, seed=1)

    with loader(2) as whole:
        expected = [numbers(batch) for batch in whole]
    assert sorted(x for batch in expected for x in batch) == list(range(N))
    with loader(2) as first:
        seen = [numbers(batch) for batch in islice(first, 2)]
        state = first.state_dict()
    with loader(1) as second:
        second.load_state_dict(state)
        seen += [numbers(batch) for batch in second]
    assert seen == expected


def test_mds_as_a_stream_comes_once(folder: str) -> None:
    stream = streaming.StreamingDataset(local=folder, shuffle=True, batch_size=4)
    with SwiftLoader(stream, batch_size=4, worker_per_consumer=2) as loader:
        seen = [x for batch in loader for x in numbers(batch)]
    assert sorted(seen) == list(range(N))


def in_a_group(rank: int, folder: str) -> tuple[list[list[int]], int]:
    """Its workers wait for those of all ranks of the host, so each rank has its own."""
    os.environ.update(RANK=f"{rank}", WORLD_SIZE="2", LOCAL_RANK=f"{rank}", LOCAL_WORLD_SIZE="2")
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    stream = streaming.StreamingDataset(local=folder, batch_size=4, replication=2)
    with SwiftLoader(stream, batch_size=4, nb_consumer=1, worker_per_consumer=2) as loader:
        loader.start(mesh=mesh["dp"])
        return [numbers(batch) for batch in loader], workers_of_this_process()


def test_mds_as_a_stream_in_a_group_of_ranks(folder: str) -> None:
    one, other = run_ranks(2, in_a_group, folder, timeout_s=120)
    assert one == other
    batches, workers = one
    assert sorted(x for batch in batches for x in batch) == list(range(N))
    assert workers == 2
