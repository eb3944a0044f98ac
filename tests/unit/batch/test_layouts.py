"""Batches laid like the one before: the very ones that collating and encoding make."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swift_loader.batch.arena import Arena
from swift_loader.batch.codec import decode, encode
from swift_loader.batch.collate import collate
from swift_loader.batch.layouts import Layouts
from swift_loader.errors import BatchError
from tests.unit.batch.batches import assert_equal
from tests.unit.batch.test_collate import AS_TORCH

Make = Callable[[int], Any]  # the n-th sample


def small(n: int) -> torch.Tensor:
    return torch.arange(16, dtype=torch.float32) + n


def large(n: int) -> torch.Tensor:
    return torch.arange(2048) + n


LAID: dict[str, Make] = {
    "row, index": lambda n: (small(n), n),
    "dict of large ones": lambda n: {"x": large(n), "y": large(-n)},
    "small ones alike": lambda n: [small(n), small(n + 1), small(n + 2)],
    "alike, with gaps": lambda n: [small(n)[:3], small(n + 1)[:3]],
    "arrays": lambda n: (np.arange(3) + n, np.full((2, 900), n, np.float16)),
    "numbers": lambda n: {"a": n, "b": n / 7, "c": -n},
    "nested": lambda n: {"a": [{"b": small(n)}, (n, 0.5 * n)], "c": large(n)},
    "bfloat16": lambda n: (small(n).bfloat16(), torch.full((3000,), n, dtype=torch.bfloat16)),
    "no dimension": lambda n: (torch.tensor(n), torch.tensor(n < 2)),
    "nothing in it": lambda n: (torch.empty(0, 3), n),
    "a tensor": small,
}


class Slot:
    """Makes batches as a worker does, in one slot."""

    def __init__(self) -> None:
        self.layouts = Layouts()
        self._buffer = np.zeros(1 << 18, np.uint8)
        self._arena = Arena(self._buffer)
        self.laid = 0

    def make(self, samples: list[Any]) -> Any:
        arena = self._arena
        arena.reset()
        skeleton = self.layouts.lay(samples, arena)
        if skeleton is None:
            assert arena.used_bytes == 0
            skeleton = encode(collate(samples, arena), arena)
            self.layouts.learn(samples, skeleton, arena.used_bytes)
        else:
            self.laid += 1
        return decode(skeleton, self._buffer[: arena.used_bytes].copy())


def check(slot: Slot, samples: list[Any]) -> None:
    assert_equal(slot.make(samples), collate(samples))


@pytest.mark.parametrize("name", LAID)
def test_the_third_batch_is_laid_like_the_two_before(name: str) -> None:
    slot = Slot()
    for first in range(0, 24, 4):
        check(slot, [LAID[name](n) for n in range(first, first + 4)])
    assert slot.laid == 4


@pytest.mark.parametrize("name", AS_TORCH)
def test_whatever_can_be_collated_is_the_same(name: str) -> None:
    slot = Slot()
    for count in (3, 3, 3, 3, 2, 3):
        check(slot, [AS_TORCH[name](n) for n in range(count)])


class Tagged(torch.Tensor):
    pass


CHANGED: dict[str, tuple[Make, Make]] = {
    "dtype": (small, lambda n: small(n).double()),
    "dtype of one": (small, lambda n: small(n).double() if n == 2 else small(n)),
    "dtype of one field": (
        lambda n: (small(n), small(n)),
        lambda n: (small(n), small(n).half()),
    ),
    "flags beside numbers": (
        lambda n: [torch.tensor(n), torch.tensor(n)],
        lambda n: [torch.tensor(n), torch.tensor(n > 1)],
    ),
    "dtype of one large one": (large, lambda n: large(n).float() if n == 2 else large(n)),
    "shape": (small, lambda n: small(n)[:15]),
    "shape of large ones": (large, lambda n: large(n)[:-1]),
    "to large": (small, lambda n: small(n).repeat(100)),
    "grad": (small, lambda n: small(n).requires_grad_()),
    "grad of a large one": (lambda n: large(n) * 1.0, lambda n: (large(n) * 1.0).requires_grad_()),
    "subclass": (small, lambda n: small(n).as_subclass(Tagged)),
    "subclass of one": (small, lambda n: small(n).as_subclass(Tagged) if n else small(n)),
    "array": (small, lambda n: small(n).numpy()),
    "tensor": (lambda n: small(n).numpy(), small),
    "array's dtype": (lambda n: np.arange(4) + n, lambda n: np.arange(4.0) + n),
    "byte order": (lambda n: np.arange(4) + n, lambda n: (np.arange(4) + n).astype(">i8")),
    "one array": (lambda n: np.arange(4), lambda n: np.arange(4.0) if n else np.arange(4)),
    "scalars": (lambda n: np.arange(4)[n], lambda n: np.int32(n)),
    "bools": (lambda n: n, lambda n: n > 1),
    "a float": (lambda n: n, lambda n: 1.5 if n else 0),
    "floats": (lambda n: n, lambda n: n / 2),
    "ints": (lambda n: n / 2, lambda n: n),
    "list": (lambda n: (n, n), lambda n: [n, n]),
    "more fields": (lambda n: (n, n), lambda n: (n, n, n)),
    "one key": (lambda n: {"a": n, "b": n}, lambda n: {"b": n, "a": n}),
    "extra key": (lambda n: {"a": n}, lambda n: {"a": n, "b": n} if n else {"a": n}),
    "key's type": (lambda n: {1: n}, lambda n: {True: n}),
    "channels last": (
        lambda n: torch.full((3, 4, 4), float(n)),
        lambda n: torch.full((3, 4, 4), float(n)).permute(2, 0, 1).contiguous().permute(1, 2, 0),
    ),
    "conj": (
        lambda n: torch.full((3,), n + 1j),
        lambda n: torch.full((3,), n + 1j).conj(),
    ),
    "neg": (
        lambda n: torch.full((3,), 1.0),
        lambda n: torch.full((3,), n + 1j).conj().imag,
    ),
    "expanded": (small, lambda n: torch.tensor([float(n)]).expand(16)),
    "none": (small, lambda n: None),
    "text": (small, str),
}


@pytest.mark.parametrize("change", CHANGED)
def test_a_batch_that_differs_is_made_as_ever(change: str) -> None:
    before, after = CHANGED[change]
    for make in (before, after), (after, before):
        for within in (lambda one: one), (lambda one: {"x": (one, 3)}):
            slot = Slot()
            for kind in (0, 0, 0, 1, 0, 0, 0, 1, 1, 1):
                check(slot, [within(make[kind](n)) for n in range(4)])


@pytest.mark.parametrize(
    "odd",
    [small(0)[:3], small(0).to_sparse(), None, large(0), torch.empty(16, device="meta")],
    ids=["shape", "sparse", "none", "length", "meta"],
)
@pytest.mark.parametrize("place", [0, 1, 3])
def test_what_can_not_be_collated_is_left_to_collate(odd: Any, place: int) -> None:
    slot = Slot()
    good = [{"x": small(n)} for n in range(4)]
    for _ in range(3):
        check(slot, good)
    bad = [*good]
    bad[place] = {"x": odd}
    with pytest.raises(BatchError):
        slot.make(bad)
    for _ in range(4):
        check(slot, good)
    assert slot.laid == 3


def test_a_batch_that_has_no_room_is_left_to_who_makes_room() -> None:
    samples = [(small(n), n) for n in range(4)]
    slot = Slot()
    for _ in range(3):
        check(slot, samples)
    assert slot.layouts.lay(samples, Arena(bytearray(64))) is None  # type: ignore[arg-type]


def test_a_changed_registry_of_torch_counts_at_once() -> None:
    registry = torch.utils.data._utils.collate.default_collate_fn_map
    slot = Slot()
    for _ in range(3):
        check(slot, [1, 2])
    registry[int] = lambda values, *, collate_fn_map=None: sum(values)
    try:
        assert slot.make([1, 2]) == 3
    finally:
        registry[int] = torch.utils.data._utils.collate.collate_int_fn
    check(slot, [1, 2])


@pytest.mark.parametrize("first", [small, large])
def test_something_else_among_tensors_is_explained_with_an_arena_too(first: Make) -> None:
    with pytest.raises(BatchError, match="types differ: Tensor in place 0; int in place 1"):
        collate([first(0), 1], Arena(np.zeros(1 << 18, np.uint8)))


leaf = st.sampled_from(
    [
        small,
        large,
        lambda n: n,
        lambda n: n / 3,
        lambda n: small(n)[: 3 + n % 2],
        lambda n: small(n).to(torch.int32),
        lambda n: small(n).half(),
        lambda n: np.arange(5) * n,
        lambda n: n if n % 5 else True,
        str,
    ]
)


def _fields(inner: st.SearchStrategy[Make]) -> st.SearchStrategy[Make]:
    several = st.lists(inner, max_size=3)
    return st.one_of(
        several.map(lambda makes: lambda n: tuple(make(n) for make in makes)),
        several.map(lambda makes: lambda n: [make(n) for make in makes]),
        several.map(lambda makes: lambda n: {str(i): make(n) for i, make in enumerate(makes)}),
    )


@given(
    st.lists(st.recursive(leaf, _fields, max_leaves=5), min_size=1, max_size=2),
    st.lists(st.tuples(st.integers(0, 1), st.integers(1, 4), st.booleans()), max_size=12),
)
def test_any_row_of_batches_is_as_collate_makes_them(
    makes: list[Make], batches: list[tuple[int, int, bool]]
) -> None:
    slot = Slot()
    for which, count, mixed in batches:
        chosen = makes[which % len(makes)]
        samples = [(makes[n % len(makes)] if mixed else chosen)(n) for n in range(count)]
        try:
            expected = collate(samples)
        except BatchError as error:
            with pytest.raises(BatchError, match=re.escape(str(error))):
                slot.make(samples)
        else:
            assert_equal(slot.make(samples), expected)
