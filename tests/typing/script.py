"""A user's script, for type checkers: it is read and never run.

A line that is wrong says ``type: ignore``; checkers complain where such a line is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from typing_extensions import assert_type

from swift_loader import SwiftLoader


class Pair(NamedTuple):
    image: Tensor
    label: int


class Digits:
    """No base class."""

    def __init__(self, train: bool) -> None:
        self.train = train

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        raise NotImplementedError


class Rows(Dataset[Tensor]):
    def __getitem__(self, index: int) -> Tensor:
        raise NotImplementedError


class Arrays(IterableDataset["dict[str, np.ndarray[Any, Any]]"]):
    def __iter__(self) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
        raise NotImplementedError


class Pairs(Dataset[Pair]):
    def __getitem__(self, index: int) -> Pair:
        raise NotImplementedError


class Nested(Dataset["dict[str, list[Tensor]]"]):
    def __getitem__(self, index: int) -> dict[str, list[Tensor]]:
        raise NotImplementedError


class OfAny:
    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError


def to_pair(samples: list[tuple[Tensor, int]]) -> Pair:
    raise NotImplementedError


def encoded(batch: Any) -> bytes:
    raise NotImplementedError


def decoded(text: bytes) -> list[int]:
    raise NotImplementedError


def batches() -> None:
    with SwiftLoader(Digits, {"train": True}, 32, shuffle=True) as digits:
        assert_type(digits, SwiftLoader[list[Tensor]])
        for batch in digits:
            assert_type(batch, list[Tensor])
    for pair in SwiftLoader(dataset=Digits(True), batch_size=32, collate_fn=to_pair):
        assert_type(pair, Pair)
    assert_type(SwiftLoader(Rows(), batch_size=32, num_workers=4), SwiftLoader[Tensor])
    assert_type(SwiftLoader(Rows(), batch_size=None), SwiftLoader[Tensor])
    assert_type(SwiftLoader(TensorDataset(torch.ones(3)), batch_size=2), SwiftLoader[list[Tensor]])
    assert_type(SwiftLoader(Arrays(), batch_size=32), SwiftLoader[dict[str, Tensor]])
    assert_type(SwiftLoader(["a", "b"], batch_size=2), SwiftLoader[list[str]])
    assert_type(SwiftLoader([1, 2, 3], batch_size=2), SwiftLoader[Tensor])
    assert_type(SwiftLoader(Pairs(), batch_size=2), SwiftLoader[Any])
    assert_type(SwiftLoader(Nested(), batch_size=2), SwiftLoader[Any])
    assert_type(SwiftLoader(Rows(), batch_size=2, transform=str), SwiftLoader[Any])
    assert_type(SwiftLoader(OfAny(), batch_size=2), SwiftLoader[Any])
    assert_type(SwiftLoader(dataset_class=Digits, dataset_kwargs={"train": True}), SwiftLoader[Any])
    assert_type(
        SwiftLoader(Rows(), batch_encoder=encoded, batch_decoder=decoded), SwiftLoader[list[int]]
    )
    assert_type(SwiftLoader.from_dataset(Rows(), 32), SwiftLoader[Tensor])
    assert_type(SwiftLoader.from_dataset(Digits(True), collate_fn=to_pair), SwiftLoader[Pair])
    assert_type(SwiftLoader.from_dataloader(DataLoader(Rows()), num_workers=2), SwiftLoader[Any])


def functions(loader: SwiftLoader, typed: SwiftLoader[Tensor]) -> Tensor:
    loader.start(0, "cuda:0")
    assert_type(len(typed), int)
    for _ in loader:
        pass
    return next(iter(typed))


def with_options(options: dict[str, Any], typed: SwiftLoader[Tensor]) -> None:
    SwiftLoader(Rows(), **options)
    assert_type(typed.with_options(shuffle=False, num_workers=1), SwiftLoader[Tensor])
    assert_type(typed.with_options(collate_fn=to_pair), SwiftLoader[Any])
    assert_type(typed.with_options(dataset=Digits(False)), SwiftLoader[Any])
    for batch in typed.progress():
        assert_type(batch, Tensor)


def wrong() -> None:
    SwiftLoader(Rows(), batch_sise=32)  # type: ignore
    SwiftLoader(Rows(), num_worker=2)  # type: ignore
    SwiftLoader(Rows(), num_workers="two")  # type: ignore
    SwiftLoader(Rows(), tail="wrap")  # type: ignore
    SwiftLoader.from_dataset(Rows(), batch_sise=32)  # type: ignore
    SwiftLoader(Rows()).with_options(batch_sise=32)  # type: ignore
    SwiftLoader.from_dataset(Rows(), {"train": True}, 32)  # type: ignore
    SwiftLoader.from_dataloader(DataLoader(Rows()), batch_sise=32)  # type: ignore
    tensors: SwiftLoader[Tensor] = SwiftLoader(Digits(True), batch_size=2)  # type: ignore
    del tensors
