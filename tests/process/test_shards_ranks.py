"""Ranks that read a stream of shards end each epoch at the same step, also after a resume."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import pytest

from tests.process.test_shards import ALL, SIZES, items, loader_of
from tests.ranks import run_ranks

pytestmark = pytest.mark.timeout(110)


def _rank(rank: int, states: Any, steps: int) -> Any:
    seen: Counter[int] = Counter()
    with loader_of(2, 2, equal_steps=True) as loader:
        if states is not None:
            loader.load_state_dict(states)
        loader.start(rank)
        count = 0
        iterator = iter(loader)
        for batch in islice(iterator, steps):
            seen.update(items(batch))
            count += 1
        state = loader.state_dict()
        del iterator
    return seen, state, count


def test_equal_steps_end_every_rank_at_the_same_step() -> None:
    first = run_ranks(2, _rank, None, 4, timeout_s=50)
    assert [count for _, _, count in first] == [4, 4]
    second = run_ranks(2, _rank, [state for _, state, _ in first], 10**6, timeout_s=50)
    assert second[0][2] == second[1][2]
    seen = sum((one[0] for one in first + second), Counter())
    assert not seen - ALL  # nothing twice; the end of the longer rank is left out
    assert sum((ALL - seen).values()) <= 2 * 2 * len(SIZES)
