"""Runs in turn: every contestant once, then every contestant again, each in a fresh process.

What slows the machine for a while then slows all of them, and a ratio within a round is fair.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.fresh import RunFailedError


@dataclass
class Rounds:
    """The answers by contestant, a list with one answer a round; `failures` by contestant."""

    answers: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def column(self, contestant: str, key: str) -> list[float]:
        """One figure of every round, or nothing when the contestant failed."""
        if contestant in self.failures:
            return []
        return [float(answer[key]) for answer in self.answers.get(contestant, [])]


def in_turn(
    contestants: Sequence[str],
    run: Callable[[str], dict[str, Any]],
    nb_rounds: int,
    title: str,
) -> Rounds:
    """Call ``run(contestant)`` for all in turn, `nb_rounds` times, forwards and backwards.

    So none has the same one before it each time: that alone made 4% between two that are alike.
    A contestant that fails is asked no more, and the failure is kept.
    """
    rounds = Rounds()
    for number in range(nb_rounds):
        for contestant in contestants[:: -1 if number % 2 else 1]:
            if contestant in rounds.failures:
                continue
            print(f"{title}: round {number + 1}/{nb_rounds}, {contestant}", file=sys.stderr)
            try:
                rounds.answers.setdefault(contestant, []).append(run(contestant))
            except RunFailedError as error:
                print(f"{title}: {contestant} failed\n{error}", file=sys.stderr)
                rounds.failures[contestant] = str(error)
    return rounds
