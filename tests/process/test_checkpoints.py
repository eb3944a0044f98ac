"""`torch.distributed.checkpoint` saves a loader with the model: on 4 ranks, and 2 go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import IterableDataset

from swift_loader import Shards, StateError, SwiftLoader
from swift_loader.integrations.checkpoint import for_checkpoint
from tests.process.mixtures import LENGTHS, mixture_of, tokens_of
from tests.ranks import run_ranks
from tests.unit.plan.mixtures import Run, plan_of

WEIGHTS = {"web": 0.6, "code": 0.3, "books": 0.1}
FIRST_STEPS, LATER_STEPS = 3, 14


class Model:
    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def state_dict(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_model_state_dict

        return get_model_state_dict(self.model)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        from torch.distributed.checkpoint.state_dict import set_model_state_dict

        set_model_state_dict(self.model, state)


def train(rank: int, nb_ranks: int, folder: str, goes_on: bool, nb_steps: int) -> dict[str, Any]:
    # It takes more than a second: only the ranks import it, not whoever collects tests.
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.checkpoint.state_dict_saver import save
    from torch.distributed.checkpoint.stateful import Stateful
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (nb_ranks,), mesh_dim_names=("dp",))
    torch.manual_seed(rank)
    model = nn.Linear(8, 8)
    fully_shard(model, mesh=mesh)
    batches = []
    with SwiftLoader(
        mixture_of(WEIGHTS), batch_size=4, nb_consumer=nb_ranks, worker_per_consumer=0,
        shuffle=True, nearby_shuffle=0, seed=7,
    ) as loader:  # fmt: skip
        assert isinstance(loader, Stateful)
        parts = {"model": Model(model), "loader": loader}
        if goes_on:
            load(parts, checkpoint_id=folder)
        loader.start(mesh=mesh["dp"])
        while len(batches) < nb_steps:
            for batch in loader:
                model(batch.float()).sum().backward()
                batches.append(batch.tolist())
                if len(batches) == nb_steps:
                    break
        if not goes_on:
            save(parts, checkpoint_id=folder)
        weight: Any = model.weight
    return {"batches": batches, "weight": weight.full_tensor().tolist()}


def test_two_ranks_go_on_where_four_were_saved(tmp_path: Any) -> None:
    folder = str(tmp_path / "checkpoint")
    four = run_ranks(4, train, 4, folder, False, FIRST_STEPS)
    two = run_ranks(2, train, 2, folder, True, LATER_STEPS)
    run = Run(plan_of(LENGTHS, weights=WEIGHTS, nb_consumer=4))
    for step in range(FIRST_STEPS):
        for rank in range(4):
            got = run.take(rank)
            assert got is not None
            assert four[rank]["batches"][step] == tokens_of(got)
    run.resume(plan_of(LENGTHS, weights=WEIGHTS, nb_consumer=2))
    step = 0
    while step < LATER_STEPS:
        wanted = [run.take(rank) for rank in range(2)]
        if None in wanted:
            run.step()
            continue
        for rank, got in enumerate(wanted):
            assert got is not None
            assert two[rank]["batches"][step] == tokens_of(got)
        step += 1
    assert two[0]["weight"] == four[0]["weight"]


# ---- what has a state for each rank

SIZES = [9, 4, 14, 3, 7, 11, 5, 8]


def seeking(shard: int, start: int = 0) -> Iterator[int]:
    return iter(range(100 * shard + start, 100 * shard + SIZES[shard]))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(60))


def own_states(kind: str, nb_ranks: int) -> SwiftLoader[Any]:
    options: dict[str, Any] = {"batch_size": 2, "nb_consumer": nb_ranks, "seed": 7}
    if kind == "shards":
        shards = Shards(range(len(SIZES)), seeking, buffer=3)
        return SwiftLoader(shards, worker_per_consumer=1, shuffle=True, validate=False, **options)
    if kind == "stream":
        return SwiftLoader(Stream(), validate=False, **options)
    sampler = {"sampler": list(range(59, -1, -1))} if kind == "sampler" else {"shuffle": True}
    return SwiftLoader(list(range(60)), worker_per_consumer=0, **sampler, **options)


def stop_or_go_on(
    rank: int, kind: str, nb_ranks: int, folder: str, goes_on: bool, wrapped: bool
) -> list[int]:
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.checkpoint.state_dict_saver import save

    with own_states(kind, nb_ranks) as loader:
        parts = {"loader": for_checkpoint(loader) if wrapped else loader}
        if goes_on:
            load(parts, checkpoint_id=folder)
        loader.start(rank)
        items = [int(i) for batch in islice(loader, None if goes_on else 4) for i in batch]
        if not goes_on:
            save(parts, checkpoint_id=folder)
    return items


@pytest.mark.parametrize(
    ("kind", "then"),
    [
        ("shards", 1),
        ("sampler", 2),
        pytest.param("stream", 2, marks=pytest.mark.soak),
        pytest.param("shards", 2, marks=pytest.mark.soak),
        pytest.param("plan", 1, marks=pytest.mark.soak),
    ],
)
def test_states_of_all_ranks_are_kept_where_each_has_its_own(
    kind: str, then: int, tmp_path: Any
) -> None:
    folder = str(tmp_path / "checkpoint")
    first = run_ranks(2, stop_or_go_on, kind, 2, folder, False, True)
    rest = run_ranks(then, stop_or_go_on, kind, then, folder, True, True)
    seen = Counter(i for items in [*first, *rest] for i in items)
    whole: list[int] = list(range(60))
    if kind == "shards":
        whole = [100 * shard + i for shard, size in enumerate(SIZES) for i in range(size)]
    assert seen == Counter(whole * (2 if kind == "sampler" else 1))  # each rank has all of it


def test_a_checkpoint_of_one_state_is_refused_where_each_rank_has_its_own(tmp_path: Any) -> None:
    told = run_ranks(2, stop_or_go_on, "sampler", 2, str(tmp_path / "checkpoint"), False, False)
    for error in told:
        assert isinstance(error, StateError)
        assert "for_checkpoint(loader)" in str(error)
