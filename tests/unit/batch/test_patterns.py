"""Batches from skeletons that came before: the same as if they were unpickled."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from swift_loader.batch.arena import Arena
from swift_loader.batch.codec import decode, encode
from swift_loader.batch.patterns import LONGEST_BYTES, Patterns, build

X, Y = torch.arange(6).view(2, 3), torch.tensor([0.5, 1.5], dtype=torch.bfloat16)

FIELDS = np.zeros(3, [("a", "i4"), ("b", "f8")])


def encoded(batch: Any) -> tuple[bytes, np.ndarray[Any, np.dtype[np.uint8]]]:
    buffer = bytearray(1 << 16)
    arena = Arena(memoryview(buffer))
    skeleton = encode(batch, arena)
    return skeleton, np.frombuffer(buffer, np.uint8, arena.used_bytes)


@pytest.mark.parametrize(
    "batch",
    [
        *(X, [X, Y], {"x": X, 1: (Y, None)}),
        *({"a": [{"b": X}, []], "c": "text", "d": (1.5, True)}, (X.numpy(), X.T.numpy())),
    ],
    ids=["tensor", "list", "nested", "mixed", "arrays"],
)
def test_a_plain_skeleton_has_a_pattern_when_it_comes_again(batch: Any) -> None:
    skeleton, base = encoded(batch)
    patterns = Patterns()
    assert patterns.find(skeleton) is None
    built = build(patterns.find(skeleton), base)
    assert str(built) == str(batch)
    assert type(built) is type(batch)


def _twice(part: Any) -> list[Any]:
    return [part, part]


def _deep() -> Any:
    batch: Any = X
    for _ in range(100):
        batch = [batch]
    return batch


@pytest.mark.parametrize(
    "batch",
    [_twice(X), _twice([X]), _twice({}), OrderedDict(x=X), {1, 2}, X.T, FIELDS, b"", _deep()],
    ids=[
        "tensor twice",
        "list twice",
        "dict twice",
        "class",
        "set",
        "view",
        "array with fields",
        "bytes",
        "deep",
    ],
)
def test_whatever_else_has_none(batch: Any) -> None:
    skeleton, _ = encoded(batch)
    patterns = Patterns()
    assert [patterns.find(skeleton) for _ in range(3)] == [None] * 3


def test_each_batch_has_containers_and_tensors_of_its_own() -> None:
    skeleton, base = encoded({"x": [X, Y]})
    batches = [decode(skeleton, base) for _ in range(4)]
    assert len({id(batch) for batch in batches}) == len({id(b["x"]) for b in batches}) == 4
    batches[2]["x"].clear()
    assert [len(batch["x"]) for batch in batches] == [2, 2, 0, 2]
    assert len({id(b["x"][0]) for b in (*batches[:2], batches[3])}) == 3


def test_skeletons_that_never_come_again_take_no_memory_for_long() -> None:
    patterns = Patterns()
    for number in range(1_000):
        assert patterns.find(encoded([X, number])[0]) is None
    assert len(patterns._known) < 100
    skeleton, base = encoded(["text" * LONGEST_BYTES, X])
    assert [len(decode(skeleton, base)) for _ in range(3)] == [2, 2, 2]
