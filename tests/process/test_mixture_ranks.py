"""Mixtures over the ranks of `torch.distributed`."""

from __future__ import annotations

from swift_loader import PlanMismatchError, SwiftLoader
from tests.process.mixtures import mixture_of
from tests.ranks import run_ranks

WEIGHTS = {"web": 0.6, "code": 0.3, "books": 0.1}


def _other_weights(rank: int) -> str:
    weights = {**WEIGHTS, "books": 0.1 + 0.1 * rank}
    try:
        with SwiftLoader(mixture_of(weights), batch_size=4, nb_consumer=2) as loader:
            loader.start(rank)
    except PlanMismatchError as error:
        return str(error)
    return ""


def test_ranks_with_other_weights_are_told_what_differs() -> None:
    for said in run_ranks(2, _other_weights):
        assert "mixture: table" in said
