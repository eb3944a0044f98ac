"""Ranks of one group get the same batches, of one set of workers."""

from __future__ import annotations

import gc
import os
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from swift_loader import BatchError, ConfigError, PlanMismatchError, SwiftLoader
from tests.process.mixtures import mixture_of
from tests.ranks import run_ranks

WEIGHTS = {"web": 0.6, "code": 0.3, "books": 0.1}


def workers_of_this_process() -> int:
    """Children of this process's zygote."""
    children = psutil.Process().children(recursive=True)
    return sum(child.ppid() != os.getpid() for child in children)


def train(rank: int) -> dict[str, Any]:
    """Two data-parallel places, each of two ranks: three epochs, one of them left early."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    said: dict[str, Any] = {"batches": []}
    with SwiftLoader(
        mixture_of(WEIGHTS),
        batch_size=4,
        nb_consumer=2,
        worker_per_consumer=2,
        shuffle=True,
        seed=5,
    ) as loader:
        loader.start(mesh=mesh["dp"])
        iter(loader)  # of which nobody takes a batch
        loader.set_epoch(0)
        kept = []
        for epoch in range(3):
            for count, batch in enumerate(loader):
                said["batches"].append(batch.tolist())
                kept.append(batch.clone())
                batch.fill_(-rank)  # a view of one memory, and nobody else's business
                if epoch == 1 and count == 3:
                    break
            if epoch == 1:
                said["state"] = loader.state_dict()
        said["workers"] = workers_of_this_process()
        said["last"] = batch.tolist()
        stats = loader.stats()
        said["samples"] = stats.samples
        del batch
        gc.collect()
    return said


def plain(consumer: int) -> list[Any]:
    """What that consumer gets without a group."""
    batches = []
    with SwiftLoader(
        mixture_of(WEIGHTS),
        batch_size=4,
        nb_consumer=2,
        worker_per_consumer=0,
        shuffle=True,
        seed=5,
    ) as loader:
        loader.start(consumer)
        for epoch in range(3):
            for count, batch in enumerate(loader):
                batches.append(batch.tolist())
                if epoch == 1 and count == 3:
                    break
    return batches


@pytest.mark.timeout(240)
def test_ranks_of_a_group_get_the_same_batches_of_one_set_of_workers(
    ranks: list[dict[str, Any]],
) -> None:
    said = [of_rank["trained"] for of_rank in ranks]
    for rank, one in enumerate(said):
        assert one["batches"] == plain(rank // 2)
        assert one["last"] == [[-rank] * 8] * len(one["last"])
        assert one["samples"] == sum(map(len, one["batches"]))
        assert one["workers"] == (0 if rank % 2 else 2)
    assert said[0]["state"] == {**said[2]["state"], "consumer": 0}
    assert said[0]["state"] == said[1]["state"]


class Long:
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"tokens": np.arange(i, i + 8), "label": i}


def slices(rank: int) -> list[Any]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    got: list[Any] = []
    for staged in (False, True):
        with SwiftLoader(Long, {"n": 12}, batch_size=3, nb_consumer=2) as loader:
            to_device = (lambda batch, device: batch) if staged else None
            loader.start(mesh=mesh["dp"], to_device=to_device,
                         context_slice=(1, mesh["cp"].get_local_rank(), 2))  # fmt: skip
            batches = list(loader)
        got.append([(batch["tokens"].tolist(), batch["label"].tolist()) for batch in batches])
    assert got[0] == got[1]
    try:
        with SwiftLoader(Long, {"n": 12}, batch_size=3, nb_consumer=2) as loader:
            loader.start(mesh=mesh["dp"], context_slice=(1, 0, 3))
            next(iter(loader))
    except BatchError as error:
        got.append(str(error))
    return got


@pytest.mark.timeout(240)
def test_a_rank_takes_its_slice(ranks: list[dict[str, Any]]) -> None:
    for rank, of_rank in enumerate(ranks):
        got = of_rank["slices"]
        for tokens, labels in got[0]:
            assert len(labels) == 3
            first = 4 * (rank % 2)
            assert tokens == [list(range(i + first, i + first + 4)) for i in labels]
        assert sum(len(labels) for _, labels in got[0]) == 6
        assert "shape (3, 8) can't be cut into 3 equal parts along dimension 1" in got[2]


class Fails(Long):
    def __getitem__(self, i: int) -> dict[str, Any]:
        if i == 7:
            raise ValueError("sample 7 is broken")
        return super().__getitem__(i)


def refusals(rank: int) -> list[str]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    said = []
    cases: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
        (Long, {"nb_consumer": 3}, {"mesh": mesh["dp"]}),
        (Long, {"nb_consumer": 2}, {"mesh": mesh}),
        (Long, {"nb_consumer": 2}, {"mesh": mesh["dp"], "consumer_index": 0}),
        (Long, {"nb_consumer": 2, "seed": 5 + (rank == 3)}, {"mesh": mesh["dp"]}),
        (Fails, {"nb_consumer": 2, "validate": True}, {"mesh": mesh["dp"]}),
    ]
    for dataset, options, start in cases:
        try:
            with SwiftLoader(dataset, {"n": 12}, batch_size=2, **options) as loader:
                loader.start(**start)
                list(loader)
            said.append("")
        except Exception as error:  # noqa: BLE001 - compared by the test
            said.append(f"{type(error).__name__}: {error}")
    return said


@pytest.mark.timeout(240)
def test_what_can_not_be_is_said_on_every_rank(ranks: list[dict[str, Any]]) -> None:
    for rank, of_rank in enumerate(ranks):
        said = of_rank["refusals"]
        assert "nb_consumer=3, and the mesh has 2 places" in said[0]
        assert "it has 2 dimensions" in said[1]
        assert said[2].startswith("ConfigError: consumer_index=0")
        assert said[3].startswith("PlanMismatchError")
        assert "seed is" in said[3]
        if rank in (2, 3):
            assert "sample 7 is broken" in said[4]
        else:
            assert said[4] == ""


def everything(rank: int) -> dict[str, Any]:
    return {"trained": train(rank), "slices": slices(rank), "refusals": refusals(rank)}


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    found = run_ranks(4, everything, timeout_s=200)
    for one in found:
        assert isinstance(one, dict), one
    return found


def test_mesh_needs_torch_distributed() -> None:
    with SwiftLoader(Long, {"n": 12}) as loader, pytest.raises(ConfigError, match="init_process"):
        loader.start(mesh=object())
    assert PlanMismatchError.__mro__
    assert torch.get_num_threads()
