"""The kinds of data sets, samplers and functions that both loaders get. Importable by workers."""

from __future__ import annotations

import collections
import dataclasses
import os
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info


class Point(NamedTuple):
    """A sample that is a named tuple."""

    x: torch.Tensor
    label: int


@dataclasses.dataclass
class Record:
    """A sample that is a dataclass."""

    x: torch.Tensor
    label: int


class Row(Mapping[str, Any]):
    """A mapping that is no dict."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values_ = dict(values)

    def __getitem__(self, key: str) -> Any:
        return self.values_[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_)

    def __len__(self) -> int:
        return len(self.values_)


def _jagged(i: int) -> torch.Tensor:
    return torch.full((1 + i % 3,), float(i))


#: Each kind of sample: what `dataset[i]` gives for an `i`.
SAMPLES: dict[str, Callable[[int], Any]] = {
    "int": lambda i: i,
    "float": lambda i: i / 4,
    "bool": lambda i: i % 2 == 0,
    "str": lambda i: f"sample {i}",
    "bytes": lambda i: bytes([i]),
    "none": lambda i: None,
    "complex number": lambda i: complex(i, 1),
    "pair": lambda i: (torch.full((3,), float(i)), i),
    "dict": lambda i: {"x": torch.arange(i, i + 4), "name": f"n{i}", "sizes": [i, i + 1]},
    "deep": lambda i: {"a": [(i, {"b": torch.tensor(i)}), np.float32(i)], "c": ("t", b"u")},
    "named tuple": lambda i: Point(torch.full((2,), float(i)), i),
    "dataclass": lambda i: Record(torch.full((2,), float(i)), i),
    "mapping": lambda i: Row({"x": torch.tensor([i]), "y": i}),
    "ordered dict": lambda i: collections.OrderedDict(b=i, a=torch.tensor(i)),
    "default dict": lambda i: collections.defaultdict(int, {"x": torch.tensor(i), "y": i}),
    "list": lambda i: [i, float(i)],
    "empty list": lambda i: [],
    "empty dict": lambda i: {},
    "numpy array": lambda i: np.full((2, 3), i, np.int16),
    "numpy scalar": lambda i: np.float64(i),
    "numpy bool": lambda i: np.bool_(i % 2),
    "numpy text": lambda i: np.array(["a", "b"]),
    "numpy objects": lambda i: np.array([i, None], dtype=object),
    "uint16": lambda i: torch.full((2,), i, dtype=torch.uint16),
    "bfloat16": lambda i: torch.full((2,), i, dtype=torch.bfloat16),
    "complex64": lambda i: torch.full((2,), complex(i, 1), dtype=torch.complex64),
    "bool tensor": lambda i: torch.tensor([True, i % 2 == 0]),
    "0-dim": lambda i: torch.tensor(float(i)),
    "empty tensor": lambda i: torch.empty(0, 3),
    "strided": lambda i: torch.arange(12).reshape(3, 4).t() + i,
    "expanded": lambda i: torch.full((1, 1), float(i)).expand(3, 2),
    "requires grad": lambda i: torch.full((2,), float(i), requires_grad=True),
    "sparse": lambda i: torch.eye(3).to_sparse() * i,
    "mixed dtypes": lambda i: torch.tensor(float(i)) if i % 2 else torch.tensor(i),
    "uneven tensors": _jagged,
    "uneven lists": lambda i: [i] * (1 + i % 3),
    "uneven keys": lambda i: {"a": i} if i % 2 else {"b": i},
    "set": lambda i: {i},
    "function": lambda i: len,
}


class MapStyle(Dataset[Any]):
    """Sample `i` is of the given kind."""

    def __init__(self, kind: str = "pair", n: int = 23) -> None:
        self.kind = kind
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        if not 0 <= i < self.n:
            raise IndexError(f"no sample {i}")
        return SAMPLES[self.kind](i)


class Keyed(Dataset[Any]):
    """Gives back the key that it was asked for, and the key's type."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, key: Any) -> Any:
        return type(key).__name__, repr(key)


class Bulk(MapStyle):
    """Has `__getitems__` too; its samples say which way they came."""

    def __getitems__(self, keys: list[int]) -> list[Any]:
        return [("bulk", i) for i in keys]


class Draws(MapStyle):
    """Draws from all three generators."""

    def __getitem__(self, i: int) -> Any:
        return random.random(), float(np.random.rand()), torch.rand(()).item()


class Kinds(Dataset[Any]):
    """Samples of many kinds: `each` of the first kind, then as many of the second, and so on."""

    def __init__(self, kinds: list[str], each: int) -> None:
        self.kinds = kinds
        self.each = each

    def __len__(self) -> int:
        return len(self.kinds) * self.each

    def __getitem__(self, i: int) -> Any:
        kind = self.kinds[i // self.each]
        if kind in ERRORS and i % self.each == 1:
            raise ERRORS[kind]()
        return SAMPLES.get(kind, SAMPLES["pair"])(i % self.each)


class TwoWords(Exception):
    """An exception whose constructor takes two arguments."""

    def __init__(self, code: int = 4, word: str = "w") -> None:
        super().__init__(code, word)
        self.code = code


ERRORS: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("bad box"),
    "KeyError": lambda: KeyError("missing"),
    "IndexError": lambda: IndexError("too far"),
    "FileNotFoundError": lambda: FileNotFoundError(2, "No such file", "photo.jpg"),
    "two arguments": lambda: TwoWords(),
    "StopIteration": lambda: StopIteration("end"),
    "AssertionError": lambda: AssertionError(),
    "UnicodeDecodeError": lambda: UnicodeDecodeError("utf8", b"\xff", 0, 1, "bad start"),
}


class Split(IterableDataset[Any]):
    """A stream that shares its items among workers, in the way torch's documentation shows."""

    def __init__(self, n: int = 23, kind: str = "pair") -> None:
        self.n = n
        self.kind = kind

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for i in range(first, self.n, step):
            yield SAMPLES[self.kind](i)


class Whole(Split):
    """A stream that does not share its items among workers."""

    def __iter__(self) -> Iterator[Any]:
        for i in range(self.n):
            yield SAMPLES[self.kind](i)


class ByRank(Split):
    """A stream that shares its items among ranks too, by the variables that ``torchrun`` sets."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        for i in range(rank * workers + worker, self.n, ranks * workers):
            yield SAMPLES[self.kind](i)


class Sized(Split):
    """A stream with a length."""

    def __len__(self) -> int:
        return self.n


def listed(samples: list[Any]) -> list[Any]:
    """A collate function that keeps the samples as they are."""
    return samples


def counted(samples: list[Any]) -> int:
    """A collate function that gives something else than a container."""
    return len(samples)
