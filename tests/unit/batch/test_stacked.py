"""Batches out of encoded samples: the very ones that collating the samples gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from swift_loader.batch.arena import Arena
from swift_loader.batch.collate import collate
from swift_loader.batch.patterns import pattern_of
from swift_loader.batch.stacked import stacked
from swift_loader.cache.samples import Layer, rebuilt

N = 3


def large(i: int) -> torch.Tensor:
    return torch.arange(3000) * i


SAMPLES: dict[str, Any] = {
    "tensor": large,
    "image and label": lambda i: (large(i).to(torch.uint8).reshape(3, 1000), i),
    "mapping": lambda i: {"x": large(i), "y": i * 0.5, "z": (i, -(2**63) + i)},
    "small": lambda i: {"x": torch.tensor([i, i]), "y": torch.tensor(i), "z": torch.ones(0)},
    "dtypes": lambda i: (torch.full((9,), i, dtype=torch.bfloat16), torch.ones(3) > i),
    "arrays": lambda i: (np.full((40, 50), i, np.float32), np.full((), i), np.zeros((2, 0))),
    "same in all": lambda i: (large(i), None, True, ()),
    "one number": lambda i: i,
    "nested": lambda i: ({"a": ({"b": (i, large(i))},)},),
}
OTHERS: dict[str, Any] = {
    "text": lambda i: (large(i), "text" * i),
    "shapes": lambda i: large(i)[: 10 + i],
    "kinds of number": lambda i: (large(i), i if i else 0.5),
    "order of memory": lambda i: np.full((40, 50), i, np.float32).T,
    "order of bytes": lambda i: np.full(50, i, ">i4"),
    "text arrays": lambda i: np.full(5, str(i)),
    "too large": lambda i: (large(i), 2**63 + i),
    "class": lambda i: np.float64(i),
}


def kept(make: Any) -> list[tuple[np.ndarray[Any, np.dtype[np.uint8]], int]]:
    """The samples as they lie in a store."""
    layer, found = Layer(), []
    for i in range(N):
        laid = layer.lay(make(i))
        data = np.frombuffer(bytearray().join(laid.pieces), np.uint8)
        assert len(data) == laid.nbytes
        found.append((data, laid.numbers))
    return found


def batch_of(make: Any, arena: Arena) -> Any:
    samples = kept(make)
    skeletons = {data[numbers:].tobytes() for data, numbers in samples}
    if len(skeletons) > 1:
        return None
    [skeleton] = skeletons
    pattern_of(skeleton)  # read when it comes again
    pattern = pattern_of(skeleton)
    addresses = [data.ctypes.data for data, _ in samples]
    return None if pattern is None else stacked(pattern, addresses, arena)


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return one.dtype is other.dtype and torch.equal(one, other)
    return bool(one == other)


@pytest.mark.parametrize("room", [1 << 17, 0])
@pytest.mark.parametrize("make", SAMPLES.values(), ids=SAMPLES)
def test_it_is_the_batch_that_collate_makes(make: Any, room: int) -> None:
    arena = Arena(np.empty(room, np.uint8))
    assert same(batch_of(make, arena), collate([make(i) for i in range(N)]))


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_what_is_no_copy_is_left_to_collate(make: Any) -> None:
    assert batch_of(make, Arena(np.empty(1 << 17, np.uint8))) is None


@pytest.mark.parametrize("make", [*SAMPLES.values(), *OTHERS.values()], ids=[*SAMPLES, *OTHERS])
@pytest.mark.parametrize("copy", [True, False])
def test_kept_samples_come_back_as_they_were(make: Any, copy: bool) -> None:
    for _ in range(3):  # by the pickle, then by its pattern
        for i, (data, numbers) in enumerate(kept(make)):
            assert str(rebuilt(data, numbers, copy=copy)) == str(make(i))


def test_samples_are_laid_beside_each_other_until_the_memory_is_used_again() -> None:
    layer = Layer()
    laid = [layer.lay((large(i), i)) for i in range(40)]  # more than the memory it begins with
    for i, each in enumerate(laid):
        data = np.frombuffer(bytearray().join(each.pieces), np.uint8)
        assert rebuilt(data, each.numbers, copy=False)[0][1] == i
    layer.clear()
    again = layer.lay((large(1), 1))
    assert again.pieces[0].obj.base is laid[-1].pieces[0].obj.base
