"""Datasets without indices: each item once over all consumers and workers, and resumed exactly."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper

from swift_loader import ConfigError, StateError, SwiftLoader
from tests.process.test_crashes import workers_of

pytestmark = pytest.mark.usefixtures("nothing_left")


class Naive(IterableDataset[int]):
    """Knows nothing of workers: torch's own loader would repeat it in each."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.n))


class SelfSharding(Naive):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        if info is None:
            return iter(range(self.n))
        return iter(range(info.id, self.n, info.num_workers))


class Uneven(IterableDataset[int]):
    """So many items in each worker."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        for item in range(1000 * info.id, 1000 * info.id + self.lengths[info.id]):
            time.sleep(0.001)  # states take a tenth of a worker's time at most
            yield item


class Draws(Naive):
    def __iter__(self) -> Iterator[Any]:
        for i in range(self.n):
            yield i, torch.rand(1).item()


class Breaks(Naive):
    def __iter__(self) -> Iterator[int]:
        yield from range(10)
        raise OSError("the connection is gone")


class WithState(Naive):
    """Tells where it stands, and counts the items that it gave in all."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.at = 0
        self.given = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < self.n:
            self.at += 1
            self.given += 1
            time.sleep(
                0.001
            )  # states take a tenth of a worker's time at most: so each batch has one
            yield self.at - 1, self.given
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def generator(n: int) -> Iterator[int]:
    yield from range(n)


def pipe(n: int, shuffle: bool = True) -> Any:
    source = IterableWrapper(list(range(n)))
    return (source.shuffle() if shuffle else source).sharding_filter().map(abs)


def items(loader: SwiftLoader) -> list[int]:
    return [int(i) for batch in loader for i in batch]


@pytest.mark.parametrize("dataset", [Naive, SelfSharding, generator, pipe])
@pytest.mark.parametrize(
    ("n", "workers"), [pytest.param(10, 4, marks=pytest.mark.soak), (101, 3), (3, 4), (0, 2)]
)
def test_each_item_comes_once_over_consumers_and_workers(
    dataset: Any, n: int, workers: int
) -> None:
    found: list[list[int]] = [[], []]
    for consumer in range(2):
        with SwiftLoader(
            dataset, {"n": n}, batch_size=4, nb_consumer=2, worker_per_consumer=workers
        ) as loader:
            loader.start(consumer)
            for epoch in range(2):
                found[epoch] += items(loader)
    assert sorted(found[0]) == list(range(n))
    assert sorted(found[1]) == list(range(n))


def test_order_is_that_of_the_stream_with_one_worker_and_the_same_every_time() -> None:
    with SwiftLoader(Naive, {"n": 50}, batch_size=4) as loader:
        assert items(loader) == list(range(50))
    runs = []
    for _ in range(2):
        with SwiftLoader(Naive, {"n": 50}, batch_size=4, worker_per_consumer=3) as loader:
            runs.append([items(loader) for _ in range(2)])
    assert runs[0] == runs[1]


def test_shuffled_pipes_differ_by_epoch_and_not_by_run() -> None:
    runs = []
    for _ in range(2):
        with SwiftLoader(pipe, {"n": 60}, batch_size=4, worker_per_consumer=2) as loader:
            runs.append([items(loader) for _ in range(3)])
    assert runs[0] == runs[1]
    assert len({tuple(epoch) for epoch in runs[0]}) == 3


def test_drop_tail_drops_short_batches_of_each_shard() -> None:
    with SwiftLoader(Naive, {"n": 22}, batch_size=4, worker_per_consumer=2, tail="drop") as loader:
        assert [len(batch) for batch in loader] == [4, 4, 4, 4]


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("staged", [True, False])
def test_early_break_is_followed_by_a_whole_epoch(in_order: bool, staged: bool) -> None:
    with SwiftLoader(
        Naive, {"n": 40}, batch_size=3, worker_per_consumer=2, in_order=in_order
    ) as loader:
        loader.start(0, to_device=(lambda batch, device: batch) if staged else None)
        for _ in range(5):
            for _ in loader:
                break
        assert sorted(items(loader)) == list(range(40))


def test_killed_workers_cost_no_item() -> None:
    with SwiftLoader(Draws, {"n": 300}, batch_size=3, worker_per_consumer=2) as loader:
        undisturbed = [batch[1].tolist() for batch in loader]
    with SwiftLoader(
        Draws, {"n": 300}, batch_size=3, worker_per_consumer=2, data_queue_size=10
    ) as loader:
        disturbed = []
        for k, batch in enumerate(loader):
            disturbed.append(batch[1].tolist())
            if k in (5, 60):
                for process in workers_of(loader):
                    process.kill()
    assert disturbed == undisturbed


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("dataset", [Draws, WithState])
@pytest.mark.parametrize(
    "taken",
    [0, 20, 23, pytest.param(1, marks=pytest.mark.soak), pytest.param(7, marks=pytest.mark.soak)],
)  # 23: one of two shards has ended
def test_resumed_stream_goes_on_with_exactly_the_rest(
    dataset: Any, taken: int, in_order: bool
) -> None:
    def build() -> SwiftLoader:
        return SwiftLoader(
            dataset, {"n": 90}, batch_size=4, worker_per_consumer=2, in_order=in_order
        )

    with build() as loader:
        list(loader)
        iterator = iter(loader)
        got = [next(iterator)[0].tolist() for _ in range(taken)]
        state = json.loads(json.dumps(loader.state_dict()))
    with build() as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        rest = list(loader)
        assert sorted([i for b in got for i in b] + [int(i) for b in rest for i in b[0]]) == list(
            range(90)
        )
        assert sorted(int(i) for b in loader for i in b[0]) == list(range(90))
        if dataset is WithState and taken == 20:
            given = max(int(g) for b in rest for g in b[1])
            # It went on from a state, not through the stream again. Under load a worker saves its
            # state with fewer batches, so where exactly it went on is not said.
            assert given < 90


@pytest.mark.parametrize("in_order", [True, False])
def test_state_stays_small_where_a_shard_ends_long_before_the_others(in_order: bool) -> None:
    options: dict[str, Any] = {"worker_per_consumer": 2, "in_order": in_order}
    with SwiftLoader(Uneven, {"lengths": [3, 400]}, **options) as loader:
        batches = iter(loader)
        got = [int(next(batches)) for _ in range(300)]
        state = json.loads(json.dumps(loader.state_dict()))
    assert len(state["ahead"]) < 70
    with SwiftLoader(Uneven, {"lengths": [3, 400]}, **options) as loader:
        loader.load_state_dict(state)
        got += [int(batch) for batch in loader]
    assert sorted(got) == [*range(3), *range(1000, 1400)]


def test_error_of_the_stream_arrives_with_its_type() -> None:
    with (
        SwiftLoader(Breaks, {"n": 0}, batch_size=4, validate=False) as loader,
        pytest.raises(OSError, match="the connection is gone") as caught,
    ):
        list(loader)
    assert "reading the stream" in str(caught.value.__cause__)


def test_length_is_honestly_unknown() -> None:
    with SwiftLoader(Naive, {"n": 8}) as loader, pytest.raises(TypeError, match="stream"):
        len(loader)


class Sized(Naive):
    """Says that it has fewer than it gives, if `said` is."""

    def __init__(self, n: int, said: int) -> None:
        super().__init__(n)
        self.said = said

    def __len__(self) -> int:
        return self.said


@pytest.mark.parametrize("drop", [False, True])
def test_sized_stream_has_the_length_that_torch_gives_it(drop: bool) -> None:
    theirs: DataLoader[int] = DataLoader(Sized(10, 10), batch_size=4, drop_last=drop)
    with SwiftLoader(Sized, {"n": 10, "said": 10}, 4, tail="drop" if drop else "pad") as loader:
        assert len(loader) == len(theirs) == len(list(loader))
    with SwiftLoader(Sized, {"n": 10, "said": 3}, 4, tail="drop" if drop else "pad") as loader:
        assert len(loader) == (0 if drop else 1)
        with pytest.warns(UserWarning, match="__len__ is too small"):
            list(loader)


@pytest.mark.parametrize("workers", [1, 2])
def test_sized_stream_has_the_length_of_each_rank(workers: int) -> None:
    options: dict[str, Any] = {"num_workers": workers, "nb_consumer": 3, "stream_split": "ranks"}
    lengths = []
    for rank in range(3):
        with SwiftLoader(Sized, {"n": 10, "said": 10}, **options) as loader:
            before = len(loader)  # of any rank: it is not known yet
            loader.start(rank)
            lengths.append(len(loader))
            assert len(list(loader)) == lengths[-1]
            assert before == 4
    assert lengths == ([4, 3, 3] if workers == 1 else [4, 4, 2])
    with SwiftLoader(Sized, {"n": 10, "said": 10}, equal_steps=True, **options) as loader:
        assert len(loader) == min(lengths)


class CountsEpochs(WithState):
    """Numbers its epochs by itself."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.epoch = 0

    def __iter__(self) -> Iterator[Any]:
        self.epoch += self.at == 0
        for i, _ in super().__iter__():
            yield i + 1000 * self.epoch

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, **super().state_dict()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch = state["epoch"]
        super().load_state_dict(state)


@pytest.mark.parametrize("workers", [0, 2])
def test_resumed_stream_keeps_the_number_of_its_epoch(workers: int) -> None:
    with SwiftLoader(CountsEpochs, {"n": 12}, 4, worker_per_consumer=workers) as loader:
        for epoch in (1, 2):
            assert sorted(items(loader)) == [1000 * epoch + i for i in range(12)]
        end = json.loads(json.dumps(loader.state_dict()))
        iterator = iter(loader)
        first = next(iterator).tolist()
        middle = loader.state_dict()
    with SwiftLoader(CountsEpochs, {"n": 12}, 4, worker_per_consumer=workers) as loader:
        for state, before in ((end, []), (middle, first)):
            loader.load_state_dict(state)
            assert sorted(before + items(loader)) == [3000 + i for i in range(12)]
            assert sorted(items(loader)) == [4000 + i for i in range(12)]


class LargeState(Naive):
    """Its state takes far longer than a batch."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.at = 0
        self.states = 0
        self.buffer = bytes(4_000_000)

    def __iter__(self) -> Iterator[Any]:
        while self.at < self.n:
            self.at += 1
            yield self.at - 1, self.states
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        self.states += 1
        return {"at": self.at, "buffer": self.buffer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def test_large_state_goes_with_few_batches_and_resumes_exactly() -> None:
    with SwiftLoader(LargeState, {"n": 200}, 2) as loader:
        iterator = iter(loader)
        got = [next(iterator) for _ in range(50)]
        state = loader.state_dict()
        assert int(got[-1][1][-1]) < 10
    with SwiftLoader(LargeState, {"n": 200}, 2) as loader:
        loader.load_state_dict(state)
        assert [i for batch in loader for i in batch[0].tolist()] == list(range(100, 200))


@pytest.mark.parametrize("option", [{"shuffle": True}, {"sampler": [0]}])
def test_what_a_stream_can_not_have_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        SwiftLoader(Naive, {"n": 8}, **option).start(0)


def test_state_of_another_set_up_is_refused() -> None:
    with SwiftLoader(Naive, {"n": 8}, worker_per_consumer=2) as loader:
        state = loader.state_dict()
    with (
        SwiftLoader(Naive, {"n": 8}, worker_per_consumer=3) as loader,
        pytest.raises(StateError, match="worker_per_consumer was 2, is now 3"),
    ):
        loader.load_state_dict(state)


class OwnIterator(IterableDataset[int]):
    """Goes on where it was left, as a reader of a file does."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.at == self.n:
            raise StopIteration
        self.at += 1
        return self.at


def test_a_forked_stream_that_goes_on_where_it_was_is_begun_anew_or_refused() -> None:
    with SwiftLoader(OwnIterator(12), start_method="fork", validate=False) as loader:
        next(iter(loader))
        for _ in range(2):
            assert [int(batch) for batch in loader] == list(range(1, 13))
    once = OwnIterator(12)
    once.lines = (i for i in range(12))  # type: ignore[attr-defined]
    with SwiftLoader(once, start_method="fork", validate=False) as loader:
        next(iter(loader))
        with pytest.raises(StateError, match=r"can't be begun anew.*generator"):
            list(loader)


def orders_of_pipes(loaders: Any, shuffled: bool, given: bool | None, workers: int) -> list[bool]:
    """Of two epochs: whether each is in order. The items are checked here."""
    options: dict[str, Any] = {} if given is None else {"shuffle": given}
    graph = pipe(100, shuffled) if workers else IterableWrapper(range(100))
    if shuffled and not workers:
        graph = graph.shuffle()
    loader = loaders(graph, batch_size=10, num_workers=workers, **options)
    epochs = [items(loader) for _ in range(2)]
    assert all(sorted(epoch) == list(range(100)) for epoch in epochs)
    getattr(loader, "close", lambda: None)()
    return [epoch == sorted(epoch) for epoch in epochs]


@pytest.mark.parametrize("shuffled", [True, False], ids=["shuffler", "plain"])
@pytest.mark.parametrize("given", [None, False, True])
def test_shuffle_is_a_setting_of_data_pipes_as_with_torch(
    shuffled: bool, given: bool | None
) -> None:
    for workers in (0, 1):
        with warnings.catch_warnings(record=True) as ours:
            warnings.simplefilter("always")
            mine = orders_of_pipes(SwiftLoader, shuffled, given, workers)
        assert mine == [given is not True and not (shuffled and given is None)] * 2
        with warnings.catch_warnings(record=True) as theirs:
            warnings.simplefilter("always")
            in_order = orders_of_pipes(DataLoader, shuffled, given, workers)
        # torch does not use the shuffler that it adds
        assert in_order == ([True, True] if given and not shuffled else mine)
        said = ["Adding one at the end" in "".join(str(w.message) for w in ws)
                for ws in (ours, theirs)]  # fmt: skip
        assert said == [given is True and not shuffled] * 2
