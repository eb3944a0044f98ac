"""Batches of every type that collates or that a `collate_fn` may return, for all who walk them."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pack_sequence

from swift_loader.batch.collate import collate
from tests.unit.batch.test_collate import AS_TORCH, Pair, Sample, Strict

__all__ = ["BATCHES", "assert_equal", "batch_of"]


@dataclasses.dataclass
class WithArgument:
    x: torch.Tensor
    scale: dataclasses.InitVar[int]
    derived: torch.Tensor = dataclasses.field(init=False)
    unset: int = dataclasses.field(init=False)

    def __post_init__(self, scale: int) -> None:
        self.derived = self.x * scale


class Around(MutableMapping[str, Any]):
    """Copied as it is, it would share its dict with the copy."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values_of = values

    def __getitem__(self, key: str) -> Any:
        return self.values_of[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.values_of[key] = value

    def __delitem__(self, key: str) -> None:
        del self.values_of[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_of)

    def __len__(self) -> int:
        return len(self.values_of)


class Row(tuple[Any, ...]):
    pass


class Rows(list[Any]):
    pass


def counted(*values: Any) -> defaultdict[str, Any]:
    return defaultdict(list, {str(n): value for n, value in enumerate(values)})


def _lengths(count: int) -> list[torch.Tensor]:
    return [torch.arange(n + 1) for n in range(count)]


#: what only a `collate_fn` returns, of so many samples
_BESIDES: dict[str, Callable[[int], Any]] = {
    "dataclass": lambda n: Sample(torch.ones(n, 2), n, {"k": np.arange(n)}, "name"),
    "frozen, slots, init=False": lambda n: collate([Strict(float(i)) for i in range(n)]),
    "InitVar, an unset field": lambda n: WithArgument(torch.arange(n), scale=2),
    "defaultdict": lambda n: counted(torch.arange(n), np.arange(n)),
    "OrderedDict": lambda n: OrderedDict(z=torch.arange(n), a=0),
    "mapping around a dict": lambda n: Around({"x": torch.arange(n)}),
    "tuple subclass": lambda n: Row((torch.arange(n), "a")),
    "list subclass": lambda n: Rows([torch.arange(n), torch.ones(n)]),
    "named tuple": lambda n: Pair(torch.arange(n), ("a",) * n),
    "sparse_coo": lambda n: torch.eye(n).to_sparse(),
    "sparse_csr": lambda n: torch.eye(n).to_sparse_csr(),
    "sparse_csc": lambda n: torch.eye(n).to_sparse_csc(),
    "nested": lambda n: torch.nested.as_nested_tensor(_lengths(n)),
    "jagged": lambda n: torch.nested.as_nested_tensor(_lengths(n), layout=torch.jagged),
    "PackedSequence": lambda n: pack_sequence(_lengths(n), enforce_sorted=False),
    "arrays": lambda n: [np.arange(n), np.arange(n, dtype=">i4"), np.arange(n)[::-1]],
    "long doubles": lambda n: np.arange(n, dtype=np.longdouble),
    "array of texts": lambda n: np.array([str(i) for i in range(n)]),
    "texts and bytes": lambda n: {"t": "name", "b": b"name", "s": {1, 2}, "n": None},
}

BATCHES = [*AS_TORCH, *(f"batch: {name}" for name in _BESIDES)]


def batch_of(name: str, count: int) -> Any:
    """A batch of `count` samples."""
    besides = name.removeprefix("batch: ")
    if besides != name:
        return _BESIDES[besides](count)
    return collate([AS_TORCH[name](n) for n in range(count)])


def assert_equal(one: Any, other: Any, *, types: bool = True) -> None:
    """Equal values, and types throughout; with `types=False` an array may have become a tensor."""
    if not types and isinstance(other, np.ndarray) and isinstance(one, torch.Tensor):
        other = torch.from_numpy(np.ascontiguousarray(other, other.dtype.newbyteorder("=")))
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert (one.layout, one.dtype) == (other.layout, other.dtype)
        if one.is_nested:
            assert_equal(list(one.unbind()), list(other.unbind()))
            return
        if one.layout is not torch.strided:
            one, other = one.to_dense(), other.to_dense()
        assert torch.equal(one, other)
    elif isinstance(one, np.ndarray):
        assert one.dtype.newbyteorder("=") == other.dtype.newbyteorder("=")
        assert np.array_equal(one, other)
    elif isinstance(one, Mapping):
        assert list(one) == list(other)
        for key in one:
            assert_equal(one[key], other[key], types=types)
        assert getattr(one, "tag", None) == getattr(other, "tag", None)
    elif isinstance(one, Sequence) and not isinstance(one, str | bytes):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_equal(left, right, types=types)
    elif dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            assert hasattr(one, field.name) == hasattr(other, field.name)
            if hasattr(one, field.name):
                ours, theirs = getattr(one, field.name), getattr(other, field.name)
                assert_equal(ours, theirs, types=types)
    else:
        assert one == other
