"""Samples that look like the ones before are laid as if each were encoded by itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from swift_loader.cache.samples import Layer, rebuilt
from tests.unit.batch.test_stacked import OTHERS, SAMPLES, same


class Named(torch.Tensor):
    pass


def large(i: int) -> torch.Tensor:
    return torch.arange(5000) + i


def marked(i: int) -> torch.Tensor:
    tensor = large(i)
    tensor.note = str(i)  # type: ignore[attr-defined]
    return tensor


_twice = large(7)
_array = np.arange(3000.0)
_locked = _array.copy()
_locked.flags.writeable = False

#: a sample that comes often, and one that is nearly so
NEARLY: dict[str, tuple[Any, Any]] = {
    "a bool for an int": ((large(0), 1), (large(1), True)),
    "a float for an int": ((large(0), 1), (large(1), 1.0)),
    "another bool": ((large(0), True), (large(1), False)),
    "None": ((large(0), None), (large(1), large(2))),
    "an int that is too large": ((large(0), 1), (large(1), 1 << 63)),
    "one more": ((large(0), 1), (large(1), 1, 2)),
    "a list": ((large(0), 1), [large(1), 1]),
    "another key": ({"a": large(0), "b": 1}, {"a": large(0), "c": 1}),
    "another order": ({"a": large(0), "b": large(1)}, {"b": large(2), "a": large(3)}),
    "a key of another type": ({1: large(0)}, {True: large(0)}),
    "another shape": (large(0), large(1).reshape(50, 100)),
    "another dtype": (large(0), large(1).to(torch.float64)),
    "a transposed one": (large(0).reshape(50, 100), large(1).reshape(100, 50).T),
    "every other": (large(0), torch.arange(10_000)[::2]),
    "a subclass": (large(0), large(1).as_subclass(Named)),
    "a note": (large(0), marked(1)),
    "a negative view": (torch.zeros(5000), torch.ones(5000)._neg_view()),
    "one with a gradient": (torch.zeros(5000), torch.zeros(5000).requires_grad_()),
    "a locked array": (_array, _locked),
    "a conjugate": (torch.zeros(5000) * 1j, (torch.ones(5000) * 1j).conj()),
    "another zero as a key": ({0.0: large(0)}, {-0.0: large(1)}),
    "a sparse one": (torch.zeros(50, 50), torch.eye(50).to_sparse()),
    "an array": (large(0), large(1).numpy()),
    "another order of memory": (_array.reshape(50, 60), _array.reshape(60, 50).T),
    "another order of bytes": (_array, _array.astype(">f8")),
    "a read-only array": (_array, np.broadcast_to(np.float64(3), (3000,))),
    "text": ((large(0), "a"), (large(1), "b")),
    "zero": ((large(0), [0.0]), (large(1), [-0.0])),
    "one object twice": ((large(0), large(1)), (_twice, _twice)),
    "one list twice": (([1], [1]), ([[1]] * 2)),
}


def of(laid: Any) -> Any:
    data = np.frombuffer(bytearray().join(laid.pieces), np.uint8)
    return rebuilt(data, laid.numbers, copy=True)


def exactly(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        assert one.flags.writeable == other.flags.writeable
        return one.dtype == other.dtype and one.strides == other.strides and (one == other).all()
    if isinstance(one, float):
        return math.copysign(1, one) == math.copysign(1, other) and one == other
    if isinstance(one, torch.Tensor) and not one.is_sparse:
        assert one.requires_grad == other.requires_grad
        return one.stride() == other.stride() and vars(one) == vars(other) and same(one, other)
    if isinstance(one, dict):
        pairs = zip(one.items(), other.items(), strict=True)
        return all(
            type(a) is type(b) and repr(a) == repr(b) and exactly(x, y) for (a, x), (b, y) in pairs
        )
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and all(map(exactly, one, other))
    return type(one) is type(other) and str(one) == str(other)


@pytest.mark.parametrize("make", [*SAMPLES.values(), *OTHERS.values()], ids=[*SAMPLES, *OTHERS])
def test_samples_come_back_as_if_each_were_encoded(make: Any) -> None:
    layer = Layer()
    for i in range(6):
        sample = make(i)
        assert exactly(of(layer.lay(sample)), of(Layer().lay(sample)))
        layer.clear()


@pytest.mark.parametrize(("often", "nearly"), NEARLY.values(), ids=NEARLY)
def test_a_sample_that_differs_is_encoded_by_itself(often: Any, nearly: Any) -> None:
    layer = Layer()
    for sample in (often, often, often, nearly, often, nearly, nearly, nearly, often):
        got, want = of(layer.lay(sample)), of(Layer().lay(sample))
        assert exactly(got, want)
        if isinstance(want, (list, tuple)) and len(want) == 2:
            assert (got[0] is got[1]) == (want[0] is want[1])


def test_large_tensors_are_not_copied_and_outlive_their_sample() -> None:
    layer = Layer()
    for i in range(3):
        tensor = large(i)
        laid = layer.lay((tensor, i))
    shared = [
        np.shares_memory(np.frombuffer(piece, np.uint8), tensor.numpy())
        for piece in laid.pieces
        if len(piece) == tensor.nbytes
    ]
    assert shared == [True]
    del tensor
    assert torch.equal(of(laid)[0], large(2))
