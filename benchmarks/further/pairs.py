"""Two ways of doing the same, in turn: the shape of nearly every further measurement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from benchmarks import fresh
from benchmarks.rounds import Rounds, in_turn

NB_ROUNDS = 5
NB_QUICK_ROUNDS = 2


def nb_rounds(is_quick: bool) -> int:
    return NB_QUICK_ROUNDS if is_quick else NB_ROUNDS


def measure_in_turn(
    title: str,
    probes: Mapping[str, partial[Any]],
    is_quick: bool,
    call: Callable[..., Any] = fresh.call,
    rounds: int | None = None,
) -> Rounds:
    """Run every probe in a fresh process, in turn; a probe is a partial of keyword arguments."""

    def run(name: str) -> dict[str, Any]:
        probe = probes[name]
        answer: dict[str, Any] = call(probe.func, **probe.keywords)
        return answer

    return in_turn(list(probes), run, rounds or nb_rounds(is_quick), title)
