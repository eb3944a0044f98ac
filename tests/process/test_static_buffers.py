"""``device_buffers="static"``: batches at the same addresses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from swift_loader import BatchError, SwiftLoader
from swift_loader.loader.static_buffers import StaticBuffers
from swift_loader.pipeline.staging import move
from tests.datasets import Numbers

pytestmark = [pytest.mark.usefixtures("shared_zygote"), pytest.mark.timeout(60)]


def to_cpu(batch: Any, device: torch.device) -> Any:
    return move(batch, device)


def named(samples: list[Any]) -> list[Any]:
    numbers = torch.tensor([float(index) for _, index in samples])
    return [numbers, {"half": numbers / 2}, f"batch of {len(samples)}"]


def addresses(batch: Any) -> tuple[int, int]:
    return batch[0].data_ptr(), batch[1]["half"].data_ptr()


@pytest.fixture(params=[(1, None), (1, to_cpu), (0, None)], ids=["plain", "staged", "in process"])
def loader(request: pytest.FixtureRequest) -> Iterator[SwiftLoader]:
    workers, move = request.param
    options: dict[str, Any] = {"batch_size": 4, "collate_fn": named, "num_workers": workers}
    with SwiftLoader(Numbers, {"n": 10}, device_buffers="static", **options) as started:
        started.start(0, torch.device("cpu"), move)
        yield started


def test_every_batch_lies_where_the_first_one_lay(loader: SwiftLoader) -> None:
    with SwiftLoader(Numbers, {"n": 10}, batch_size=4, collate_fn=named, num_workers=0) as fresh:
        fresh.start()
        expected = [(batch[0].tolist(), batch[2]) for batch in fresh][:2]
    found, places = [], set()
    batches = iter(loader)
    for _ in range(2):
        batch = next(batches)
        found.append((batch[0].tolist(), batch[2]))
        places.add(addresses(batch))
    assert found == expected
    assert len(places) == 1


def test_a_batch_of_another_shape_is_refused_and_names_the_fix(loader: SwiftLoader) -> None:
    batches = iter(loader)
    next(batches), next(batches)
    with pytest.raises(BatchError, match=r'shape \(2,\).*shape \(4,\).*tail="drop"'):
        next(batches)
    assert next(batches, None) is None  # it counts as taken


@pytest.mark.parametrize(
    ("second", "what"),
    [
        ([torch.ones(2)], "fewer tensors"),
        ([torch.ones(2)] * 3, "more tensors"),
        ([torch.ones(2), torch.ones(2, dtype=torch.int64)], "int64.*float32"),
    ],
)
def test_a_batch_of_another_kind_is_refused(second: Any, what: str) -> None:
    buffers = StaticBuffers()
    buffers.filled([torch.ones(2), torch.ones(2)])
    with pytest.raises(BatchError, match=what):
        buffers.filled(second)


def test_sparse_tensors_have_no_static_place() -> None:
    buffers = StaticBuffers()
    with pytest.raises(BatchError, match="dense"):
        buffers.filled([torch.ones(2), torch.eye(2).to_sparse()])
    for _ in range(2):  # nothing was made for the batch that was refused
        assert buffers.filled([torch.ones(2)])[0].tolist() == [1, 1]
