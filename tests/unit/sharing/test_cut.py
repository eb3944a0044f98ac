"""Cutting a stream anew: every sample once, in order, copied only across a seam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swift_loader.errors import BatchError
from swift_loader.sharing.cut import Cutter, Layout, nb_samples_of


class Pair(NamedTuple):
    x: torch.Tensor
    y: list[str]


@dataclass
class Record:
    values: np.ndarray
    source: str


def batch(start: int, count: int) -> dict[str, object]:
    numbers = torch.arange(start, start + count)
    return {
        "pair": Pair(numbers, [str(i) for i in range(start, start + count)]),
        "record": Record(np.arange(start, start + count), "a name"),
        "columns": [numbers * 2, numbers.float().reshape(-1, 1)],
        "targets": [{"boxes": torch.full((i % 3, 4), i)} for i in range(start, start + count)],
        "scale": torch.tensor(0.5),
        "epoch": 3,
        "nothing": None,
    }


@given(st.lists(st.integers(1, 9), max_size=12), st.integers(1, 20))
def test_any_cut_gives_every_sample_once_and_in_order(sizes: list[int], batch_size: int) -> None:
    cutter, pieces, start = Cutter(batch_size), [], 0
    for size in sizes:
        cutter.put(batch(start, size))
        start += size
        while cutter.ready:
            pieces.append(cutter.take())
    rest = cutter.take()
    pieces += [rest] if rest is not None else []
    total = sum(sizes)
    lengths = [len(piece["pair"].x) for piece in pieces]
    assert lengths == [batch_size] * (total // batch_size) + [total % batch_size] * (
        total % batch_size > 0
    )
    assert [int(i) for piece in pieces for i in piece["pair"].x] == list(range(total))
    assert [s for piece in pieces for s in piece["pair"].y] == [str(i) for i in range(total)]
    assert [int(i) for piece in pieces for i in piece["record"].values] == list(range(total))
    assert [int(i) for piece in pieces for i in piece["columns"][1]] == list(range(total))
    boxes = [target["boxes"] for piece in pieces for target in piece["targets"]]
    assert [len(b) for b in boxes] == [i % 3 for i in range(total)]
    for piece in pieces:
        assert isinstance(piece["pair"], Pair)
        assert piece["record"].source == "a name"
        assert float(piece["scale"]) == 0.5
        assert (piece["epoch"], piece["nothing"]) == (3, None)


def test_a_piece_within_one_batch_is_a_view() -> None:
    numbers = torch.arange(10)
    cutter = Cutter(4)
    cutter.put(numbers)
    assert cutter.take().data_ptr() == numbers.data_ptr()
    assert cutter.take().data_ptr() == numbers[4:].data_ptr()


def test_a_batch_that_fits_is_handed_on_as_it_is() -> None:
    whole = batch(0, 4)
    assert Layout().cut(whole, 4, 0, 4) is whole


def test_dtypes_survive_a_seam() -> None:
    joined = Layout().join(
        [(torch.ones(2, dtype=torch.bfloat16), 2), (torch.ones(1).bfloat16(), 1)]
    )
    assert joined.dtype is torch.bfloat16
    assert len(joined) == 3


def test_a_batch_without_samples_to_count_is_refused_with_the_fix() -> None:
    with pytest.raises(BatchError, match="leave out batch_size"):
        nb_samples_of({"a": 1})


def test_columns_stay_columns_where_a_batch_has_as_many_samples_as_columns() -> None:
    cutter = Cutter(1)
    for size in (5, 2):
        cutter.put([{"x": torch.zeros(size, 3)}, {"y": torch.ones(size)}])
    pieces = []
    while cutter.ready:
        pieces.append(cutter.take())
    assert [len(piece) for piece in pieces] == [2] * 7
    assert all(piece[0]["x"].shape == (1, 3) for piece in pieces)
    assert all(piece[1]["y"].shape == (1,) for piece in pieces)
