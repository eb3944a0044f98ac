"""Ranks of one group on one host: one set of workers, whatever the batches are made of."""

from __future__ import annotations

import fcntl
import os
import pickle
import secrets
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import islice
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler

from swift_loader import ConfigError, LoaderError, Shards, SwiftLoader
from tests.process.test_meshes import workers_of_this_process
from tests.ranks import run_ranks

pytestmark = pytest.mark.timeout(300)

SIZES = (7, 3, 11, 5, 9, 2, 8, 6)
STOP = 3  # batches of the second epoch before it is left


class Numbers:
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> int:
        return i


class Bad(Numbers):
    def __getitem__(self, i: int) -> int:
        if i % 16 == 5:
            raise KeyError(f"sample {i} is bad")
        return i


class LastFirst(Numbers):
    """The first sample of each consumer's part waits until its last one is made."""

    def __init__(self, n: int, folder: str, nb_consumer: int) -> None:
        super().__init__(n)
        self.folder, self.part = folder, n // nb_consumer

    def __getitem__(self, i: int) -> int:
        pipe = os.path.join(self.folder, str(i // self.part))
        if i % self.part == 0:
            with open(pipe, "rb") as file:
                file.read()
        elif i % self.part == self.part - 1:
            with open(pipe, "wb"):
                pass
        return i


class Stream(IterableDataset[int]):
    """Split by nothing; can tell where it stands."""

    def __init__(self, n: int) -> None:
        self.n, self.at = n, 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.n:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def opened(shard: int, start: int = 0) -> Iterator[int]:
    return iter(range(100 * shard + start, 100 * shard + SIZES[shard]))


def planned(consumers: int, consumer: int, **options: Any) -> SwiftLoader[Any]:
    return SwiftLoader(
        Numbers, {"n": 61}, batch_size=4, nb_consumer=consumers, worker_per_consumer=2,
        shuffle=True, seed=3, validate=False, **options,
    )  # fmt: skip


def with_codec(consumers: int, consumer: int) -> SwiftLoader[Any]:
    encoder: Callable[[Any], bytes] = pickle.dumps
    return planned(consumers, consumer, batch_encoder=encoder, batch_decoder=pickle.loads)


def sampled(consumers: int, consumer: int) -> SwiftLoader[Any]:
    generator = torch.Generator().manual_seed(consumer)
    sampler = RandomSampler(range(30), generator=generator)
    return SwiftLoader(
        Numbers, {"n": 30}, sampler=sampler, batch_size=4, nb_consumer=consumers,
        worker_per_consumer=2, seed=3, validate=False,
    )  # fmt: skip


def sampled_by_global_generator(consumers: int, consumer: int) -> SwiftLoader[Any]:
    torch.manual_seed(10 + consumer)
    batches = BatchSampler(RandomSampler(range(30)), 4, False)
    return SwiftLoader(
        Numbers, {"n": 30}, batch_sampler=batches, nb_consumer=consumers, worker_per_consumer=2,
        seed=3,
    )  # fmt: skip


def streamed(consumers: int, consumer: int, **options: Any) -> SwiftLoader[Any]:
    return SwiftLoader(
        Stream, {"n": 61}, batch_size=4, nb_consumer=consumers, worker_per_consumer=2, seed=3,
        **options,
    )  # fmt: skip


def sharded(consumers: int, consumer: int, **options: Any) -> SwiftLoader[Any]:
    shards = Shards(range(len(SIZES)), opened, buffer=5)
    return SwiftLoader(
        shards, batch_size=3, nb_consumer=consumers, worker_per_consumer=2, shuffle=True, seed=3,
        **options,
    )  # fmt: skip


KINDS: dict[str, Callable[[int, int], SwiftLoader[Any]]] = {
    "planned": planned,
    "codec": with_codec,
    "sampled": sampled,
    "sampled by a global generator": sampled_by_global_generator,
    "streamed": streamed,
    "sharded": sharded,
    "sharded, unvalidated": partial(sharded, validate=False),
    "sharded, staged": sharded,
    "sharded, equal steps": partial(sharded, equal_steps=True),
}
ALL = {
    "planned": sorted(range(61)),
    "streamed": sorted(range(61)),
    "sharded": sorted(100 * shard + i for shard, size in enumerate(SIZES) for i in range(size)),
}


def as_it_is(batch: Any, device: torch.device) -> Any:
    return batch


def trained(kind: str, consumers: int, consumer: int, mesh: Any, states: Any) -> dict[str, Any]:
    """Two epochs, of which the second is left early; or what states leave of that."""
    got: dict[str, Any] = {"first": [], "second": [], "rest": []}
    with KINDS[kind](consumers, consumer) as loader:
        if states is not None:
            loader.load_state_dict(states)
        where: dict[str, Any] = {"consumer_index": consumer} if mesh is None else {"mesh": mesh}
        loader.start(**where, to_device=as_it_is if "staged" in kind else None)
        got["workers"] = workers_of_this_process()
        if states is not None:
            got["rest"] = [batch.tolist() for batch in loader]
            return got
        for batch in loader:
            got["first"].append(batch.tolist())
            batch.fill_(-1 - consumer)  # nobody else's business
        for batch in islice(loader, STOP):
            got["second"].append(batch.tolist())
        got["state"] = loader.state_dict()
        if mesh is None:
            del batch
    return got


@cache
def whole(kind: str) -> list[list[Any]]:
    """By consumer: what it gets in the second epoch, without groups."""
    found = []
    for consumer in range(2):
        with KINDS[kind](2, consumer) as loader:
            loader.start(consumer)
            list(loader)
            found.append([batch.tolist() for batch in loader])
    return found


def ranks_of(rank: int, kinds: list[str], nb_groups: int, states: Any) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (nb_groups, 4 // nb_groups), mesh_dim_names=("dp", "tp"))
    consumer = rank // (4 // nb_groups)
    return {
        kind: trained(kind, nb_groups, consumer, mesh["dp"], states and states(kind, consumer))
        for kind in kinds
    }


class StatesOf:
    """What a consumer loads: its own state, or those of all."""

    def __init__(self, found: list[dict[str, Any]], of_all: bool) -> None:
        self.states = {
            kind: [found[0][kind]["state"], found[2][kind]["state"]] for kind in found[0]
        }
        self.of_all = of_all

    def __call__(self, kind: str, consumer: int) -> Any:
        return self.states[kind] if self.of_all else self.states[kind][consumer]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """By rank. It takes half a minute, so processes that share the tests share the result."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", secrets.token_hex())
    file = tmp_path_factory.getbasetemp().parent / f"groups-{run}"
    with file.open("a+b") as kept:
        fcntl.flock(kept, fcntl.LOCK_EX)
        kept.seek(0)
        if not file.stat().st_size:
            found = run_ranks(4, ranks_of, list(KINDS), 2, None, timeout_s=150)
            for one in found:
                assert isinstance(one, dict), one
            pickle.dump(found, kept)
            kept.seek(0)
        return list(pickle.load(kept))


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_gets_the_same_batches_of_one_set_of_workers(
    first: list[dict[str, Any]], kind: str
) -> None:
    said = [one[kind] for one in first]
    assert [one["workers"] for one in said] == [2, 0, 2, 0]
    for leader, member in ((said[0], said[1]), (said[2], said[3])):
        for part in ("first", "second", "state"):
            assert leader[part] == member[part], part
    assert said[0]["first"] != said[2]["first"]
    everything = ALL.get(kind.partition(",")[0])
    if everything is not None and "equal" not in kind:
        seen = (sample for one in said[::2] for batch in one["first"] for sample in batch)
        assert sorted(seen) == everything


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "equal" not in kind])
def test_the_batches_are_those_without_a_group(first: list[dict[str, Any]], kind: str) -> None:
    expected = whole(kind)
    for rank, one in enumerate(first):
        assert one[kind]["second"] == expected[rank // 2][:STOP]


def test_a_resume_goes_on_exactly(first: list[dict[str, Any]]) -> None:
    kinds = [kind for kind in KINDS if "equal" not in kind and "global" not in kind]
    rest = run_ranks(4, ranks_of, kinds, 2, StatesOf(first, of_all=False), timeout_s=150)
    for kind in kinds:
        expected = whole(kind)
        for rank, one in enumerate(rest):
            assert one[kind]["rest"] == expected[rank // 2][STOP:], (kind, rank)
            assert one[kind]["workers"] == (0 if rank % 2 else 2)


@pytest.mark.parametrize("nb_groups", [pytest.param(1, marks=pytest.mark.soak), 4])
def test_a_resume_with_another_number_of_groups_is_exact(
    first: list[dict[str, Any]], nb_groups: int
) -> None:
    kinds = ["planned", "sharded"]
    rest = run_ranks(4, ranks_of, kinds, nb_groups, StatesOf(first, of_all=True), timeout_s=100)
    for kind in kinds:
        a_group = 4 // nb_groups
        for rank, one in enumerate(rest):
            assert one[kind]["rest"] == rest[rank // a_group * a_group][kind]["rest"]
        batches = [batch for one in first[::2] for batch in one[kind]["second"]]
        batches += [batch for one in rest[::a_group] for batch in one[kind]["rest"]]
        assert sorted(sample for batch in batches for sample in batch) == ALL[kind]


# ---- what differs by time


def leaves_epochs(rank: int) -> list[Any]:
    """Some of them before their first batch, and some when the sampler has nothing more to draw."""
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    got: list[Any] = []
    for kind in ("sampled", "sampled by a global generator", "sharded", "planned"):
        for to_device in (None, as_it_is):
            with KINDS[kind](1, 0) as loader:
                loader.start(mesh=mesh["dp"], to_device=to_device)
                for nb_batches in (0, 6, 2, 0, 0, 10**6, 0, 3, 10**6):
                    batches = iter(loader)
                    got.append([batch.tolist() for batch in islice(batches, nb_batches)])
    return got


def test_epochs_that_are_left_early_leave_the_ranks_alike() -> None:
    one, other = run_ranks(2, leaves_epochs, timeout_s=120)
    assert isinstance(one, list), one
    assert one == other


FOR_EACH = 400  # more than a queue holds: the last one of them is not made ahead


def out_of_order(rank: int, folder: str) -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    got: list[Any] = []
    dataset = {"n": 2 * FOR_EACH, "folder": folder, "nb_consumer": 2}
    options: dict[str, Any] = {"nb_consumer": 2, "worker_per_consumer": 2, "in_order": False}
    with SwiftLoader(LastFirst, dataset, validate=False, **options) as loader:
        loader.start(mesh=mesh["dp"])
        got += [batch.item() for batch in islice(loader, 20)]
        got.append(loader.state_dict())
        got.append(workers_of_this_process())
    os.environ["XDG_RUNTIME_DIR"] = folder + str(rank % 2)
    try:
        with SwiftLoader(Numbers, {"n": 9}, **options) as loader:
            loader.start(mesh=mesh["dp"])
    except ConfigError as error:
        got.append(str(error))
    return got


def test_out_of_order_a_group_gets_the_order_of_one_set_of_workers(tmp_path: Any) -> None:
    for consumer in range(2):
        os.mkfifo(tmp_path / str(consumer))
    said = run_ranks(4, out_of_order, str(tmp_path), timeout_s=120)
    for rank, one in enumerate(said):
        assert isinstance(one, list), one
        assert one[:21] == said[rank // 2 * 2][:21]
        assert FOR_EACH * (rank // 2) not in one[:20]  # the first sample of its part
        assert one[21] == (0 if rank % 2 else 2)
        assert "in_order=False: consumer 0 has ranks on several hosts" in one[22]


def with_bad_samples(rank: int) -> list[Any]:
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    got: list[Any] = []
    with SwiftLoader(Bad, {"n": 48}, batch_size=4, validate=False) as loader:
        loader.start(mesh=mesh["dp"])
        batches = iter(loader)
        while True:
            try:
                got.append(next(batches).tolist())
            except StopIteration:
                return got
            except KeyError as error:
                got.append(str(error))


def test_an_error_of_the_data_set_reaches_each_rank_with_its_type() -> None:
    one, other = run_ranks(2, with_bad_samples)
    assert one == other
    assert sum(isinstance(batch, str) and "is bad" in batch for batch in one) == 3
    assert len(one) == 12


def other_samplers(rank: int) -> str:
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    sampler = RandomSampler(range(30), generator=torch.Generator().manual_seed(rank))
    with SwiftLoader(Numbers, {"n": 30}, sampler=sampler) as loader:
        loader.start(mesh=mesh["dp"])
        try:
            return str(len(list(loader)))
        except LoaderError as error:
            return str(error)


def test_samplers_that_differ_within_a_group_are_told_of() -> None:
    one, other = run_ranks(2, other_samplers)
    assert one == "30"
    assert "batch 0 of epoch 0: this rank's sampler gives other keys" in other


def who_dies(rank: int, dead: int) -> str:
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    with streamed(1, 0) as loader:
        loader.start(mesh=mesh["dp"])
        count = 0
        try:
            for _ in loader:
                count += 1
                if count == 5 and rank == dead:
                    os._exit(1)
        except LoaderError as error:
            return str(error)
    return str(count)


def test_a_rank_that_dies_holds_nobody_up() -> None:
    assert run_ranks(2, who_dies, 1) == ["16", None]
    assert "the rank of this group that has the workers is gone" in run_ranks(2, who_dies, 0)[1]


class NoSuch(Numbers):
    def __init__(self) -> None:
        raise FileNotFoundError("no such data")


def not_there(rank: int) -> str:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    try:
        with SwiftLoader(NoSuch, nb_consumer=2, validate=False) as loader:
            loader.start(mesh=mesh["dp"])
    except (FileNotFoundError, LoaderError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_where_the_workers_can_not_start_every_rank_hears_why() -> None:
    said = run_ranks(4, not_there)
    for rank in (0, 2):
        assert said[rank] == "FileNotFoundError: no such data"
        assert said[rank + 1].startswith("PlanMismatchError: other consumers could not start")
        assert "no such data" in said[rank + 1]


def cut_by_rank(rank: int) -> list[str]:
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with SwiftLoader(Stream(10 + rank), batch_size=4, nb_consumer=1) as loader:
            loader.start(mesh=mesh["dp"])
            said = [str([batch.tolist() for batch in loader])]
    return said + [str(one.message) for one in caught if "same consumer" in str(one.message)]


def test_a_stream_that_was_cut_by_rank_is_told_of() -> None:
    one, other = run_ranks(2, cut_by_rank)
    assert one == other[:1]
    assert "the stream of rank 0 is another one than those of ranks [1]" in other[1]


def split_by_node(urls: Any) -> Any:
    """As webdataset's."""
    return urls


class BySplitter(Stream):
    def __init__(self) -> None:
        super().__init__(9)
        self.splitter = split_by_node


def refused(rank: int) -> list[str]:
    import datasets
    from datasets.distributed import split_dataset_by_node

    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    examples = datasets.Dataset.from_dict({"x": list(range(8))}).to_iterable_dataset(2)
    by_rank = split_dataset_by_node(examples, rank, 2)
    by_place = split_dataset_by_node(examples, 0, 1)
    said = []
    for stream in (BySplitter(), by_rank, by_place):
        try:
            with SwiftLoader(stream, batch_size=4, nb_consumer=1) as loader:
                loader.start(mesh=mesh["dp"])
                said.append(str([batch["x"].tolist() for batch in loader]))
        except ConfigError as error:
            said.append(str(error))
    return said


def test_a_stream_that_splits_by_all_ranks_is_refused() -> None:
    pytest.importorskip("datasets", reason="needs datasets")
    one, other = run_ranks(2, refused, timeout_s=120)
    assert one == other
    assert "split_by_node counts all ranks of torch.distributed" in one[0]
    assert "was given world_size=2, and there are 1 consumers" in one[1]
    assert one[2] == "[[0, 1, 2, 3], [4, 5, 6, 7]]"
