"""Wrong uses of the first afternoon: each is answered at once, by what is wrong and the fix."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset

from swift_loader import (
    BatchError,
    ClosedError,
    ConfigError,
    ShippingError,
    StateError,
    SwiftLoader,
)
from tests import datasets

pytestmark = pytest.mark.usefixtures("nothing_left")
ROWS = TensorDataset(torch.arange(20))


class NoItems:
    def __len__(self) -> int:
        return 3


class WrongLength:
    def __init__(self, length: Any) -> None:
        self.length = length

    def __len__(self) -> Any:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(10))


class Shifting(DataLoader[Any]):
    """A `DataLoader` that changes its batches."""

    def __iter__(self) -> Any:
        return ((batch[0] + 1,) for batch in super().__iter__())


class Taking(DataLoader[Any]):
    """One that overrides what gives the batches of indices, and so on."""

    _index_sampler = property(lambda self: [[0, 1]])


class Making(DataLoader[Any]):
    def _get_iterator(self) -> Any:
        return iter([1])


class Collating(DataLoader[Any]):
    _auto_collation = property(lambda self: False)


class Seeding(DataLoader[Any]):
    def _get_shared_seed(self) -> int:
        return 3


class Long(DataLoader[Any]):
    def __len__(self) -> int:
        return 100


class Growing(datasets.Numbers):
    def __getitem__(self, i: int) -> Any:
        return torch.zeros(i)


class OtherKeys(datasets.Numbers):
    def __getitem__(self, i: int) -> Any:
        return {f"key {i}": 1}


class Objects(datasets.Numbers):
    def __getitem__(self, i: int) -> Any:
        return object()


class WithLock(datasets.Numbers):
    def __init__(self) -> None:
        super().__init__(4)
        self.lock = threading.Lock()


class Stops(datasets.Numbers):
    def __getitem__(self, i: int) -> Any:
        breakpoint()


def no_argument() -> None:
    return


OPTIONS: list[tuple[dict[str, Any], str]] = [
    # the data set
    ({"dataset": None}, "give a data set"),
    ({"dataset": "photos"}, "give a data set"),
    ({"dataset": Path("photos")}, "give a data set"),
    ({"dataset": 3}, "give a data set"),
    ({"dataset": NoItems()}, "an object with __getitem__"),
    ({"dataset": map(int, "12")}, "iterated once: give a list"),
    ({"dataset": (i for i in range(3))}, "a function that returns the iterator"),
    ({"dataset": DataLoader(ROWS)}, "from_dataloader"),
    ({"dataset": WrongLength("7")}, "WrongLength"),
    ({"dataset": WrongLength(-1)}, "WrongLength"),
    ({"dataset": WrongLength(2**70)}, "WrongLength"),
    ({"dataset_class": ROWS}, "two names of one option"),
    ({"dataset_kwargs": {"n": 4}}, "built already; leave them out"),
    ({"dataset_kwargs": [1]}, "give a dict of keyword arguments"),
    ({"dataset_kwargs": 32}, "batch_size=32"),
    ({"dataset_kwargs": {3: 4}}, "have names, and 3 is none"),
    # names that are none
    ({"num_worker": 2}, "did you mean 'num_workers'"),
    ({"worker_per_consumers": 2}, "did you mean 'worker_per_consumer'"),
    ({"batchsize": 2}, "did you mean 'batch_size'"),
    ({"batch_sise": 2}, "did you mean 'batch_size'"),
    ({"collate": list}, "did you mean 'collate_fn'"),
    ({"transforms": str}, "did you mean 'transform'"),
    ({"bs": 2}, "give batch_size"),
    ({"world_size": 2}, "give nb_consumer"),
    ({"num_replicas": 2}, "give nb_consumer"),
    ({"rank": 0}, r"loader.start\(rank\)"),
    ({"device": "cuda"}, r"loader.start\(device=...\)"),
    ({"snapshot_every_n_steps": 10}, "leave it out"),
    ({"epochs": 3}, "each `for batch in loader` is an epoch"),
    ({"xyz": 3}, r"see help\(SwiftLoader\)"),
    # two names, or two that don't go together
    ({"num_workers": 2, "worker_per_consumer": 2}, "two names of one option"),
    ({"drop_last": True, "tail": "pad"}, "two names of one option"),
    ({"seed": 1, "generator": torch.Generator()}, "seed is given too"),
    ({"sampler": range(3), "shuffle": True}, "leave shuffle out"),
    ({"batch_sampler": [[1]], "shuffle": True}, "leave shuffle out"),
    ({"batch_sampler": [[1]], "batch_size": 3}, "leave them out"),
    ({"batch_sampler": [[1]], "sampler": [1]}, "leave them out"),
    ({"batch_sampler": [[1]], "drop_last": True}, "leave them out"),
    ({"batch_size": None, "drop_last": True}, "leave drop_last"),
    ({"num_workers": 0, "prefetch_factor": 2}, "leave it out"),
    ({"num_workers": 0, "persistent_workers": True}, "there are no workers"),
    ({"batch_encoder": bytes}, "batch_decoder is not: give both"),
    ({"batch_decoder": bytes}, "batch_encoder is not: give both"),
    ({"start_method": "fork", "remote_workers": ["tcp://h:1"], "remote_key": False}, "give 'main'"),
    # values
    ({"batch_size": 0}, "batch_size=0: give a whole number, 1 or more"),
    ({"batch_size": -1}, "batch_size=-1"),
    ({"batch_size": 2.5}, "batch_size=2.5"),
    ({"batch_size": "32"}, "batch_size='32'"),
    ({"batch_size": True}, "batch_size=True"),
    ({"nb_consumer": 0}, "nb_consumer=0"),
    ({"num_workers": -1}, "num_workers=-1"),
    ({"num_workers": 2.5}, "num_workers=2.5"),
    ({"num_workers": "4"}, "num_workers='4'"),
    ({"num_workers": 100_000}, "give at most 4096"),
    ({"worker_per_consumer": -1}, "worker_per_consumer=-1"),
    ({"worker_per_consumer": "Auto"}, "or 'auto'"),
    ({"shuffle": 1}, "shuffle=1: give True or False"),
    ({"shuffle": "yes"}, "shuffle='yes'"),
    ({"seed": -1}, "seed=-1"),
    ({"seed": "7"}, "seed='7'"),
    ({"seed": 2**63}, "seed=9223372036854775808"),
    ({"seed_number": 1.5}, "seed_number=1.5"),
    ({"generator": 7}, "or a seed instead"),
    ({"generator": np.random.default_rng(1)}, "give a torch.Generator"),
    ({"sampler": 4}, "give an iterable"),
    ({"sampler": "random"}, "give an iterable"),
    (
        {"sampler": RandomSampler},
        r"it is a class: give an object, such as RandomSampler\(dataset\)",
    ),
    ({"data_queue_size": 0}, "data_queue_size=0"),
    ({"data_queue_size": "10"}, "data_queue_size='10'"),
    ({"message_queue_size": 0}, "message_queue_size=0"),
    ({"max_buffer_size": 0}, "max_buffer_size=0"),
    ({"prefetch_factor": 0, "num_workers": 1}, "prefetch_factor=0"),
    ({"prefetch_epochs": 3}, "prefetch_epochs=3: give one of 0, 1"),
    ({"nearby_shuffle": -5}, "nearby_shuffle=-5"),
    ({"tail": "wrap"}, "give one of 'balanced', 'drop', 'pad'"),
    ({"drop_last": "yes"}, "drop_last='yes': give True or False"),
    ({"in_order": "yes"}, "in_order='yes'"),
    ({"timeout": -1}, "timeout=-1"),
    ({"timeout": "1m"}, "timeout='1m': give seconds"),
    ({"timeout": 1e7}, "timeout=10000000.0: give at most"),
    ({"on_timeout": "retry"}, "on_timeout='retry'"),
    ({"on_error": "ignore"}, "give 'raise', 'skip', 'replace'"),
    ({"threads_per_worker": 0}, "threads_per_worker=0"),
    ({"max_nb_batch_on_device": 0}, "max_nb_batch_on_device=0"),
    ({"max_bad_samples": -1}, "max_bad_samples=-1"),
    ({"max_worker_restarts": -1}, "max_worker_restarts=-1"),
    ({"max_deaths_per_batch": 0}, "max_deaths_per_batch=0"),
    ({"collate_fn": "stack"}, "collate_fn='stack': give a callable"),
    ({"transform": 3}, "transform=3: give a callable"),
    ({"worker_init_fn": 1}, "worker_init_fn=1"),
    ({"pin_memory": "cuda"}, "pin_memory='cuda': give True or False"),
    ({"pin_memory_device": "tpu"}, "pin_memory_device='tpu'"),
    ({"multiprocessing_context": "threads"}, "give 'fork', 'spawn', 'forkserver'"),
    ({"start_method": "spawn"}, "start_method='spawn': give one of"),
    ({"stream_split": "both"}, "stream_split='both'"),
    ({"worker_affinity": [99_999]}, "give CPU numbers out of"),
    ({"remote_workers": "node01"}, "give one as 'tcp://host:port'"),
    ({"remote_workers": ["tcp://node01"]}, "give tcp://host:port"),
    (
        {"remote_workers": ["tcp://127.0.0.1:1"], "remote_key": "/nowhere/key"},
        "swift-loader keygen",
    ),
    ({"logger": 3}, "logger"),
    ({"logger": {"file": "x"}}, "logger"),
    ({"logger": {"path": "x", "level": "LOUD"}}, "give one of TRACE"),
    ({"benchmark": None}, "benchmark=None"),
    ({"benchmark_file": 7}, "benchmark_file=7: give the path"),
    ({"equal_steps": True}, "leave it out"),
]


@pytest.mark.parametrize(
    ("options", "says"), OPTIONS, ids=[f"{n} {' '.join(row[0])}" for n, row in enumerate(OPTIONS)]
)
def test_wrong_argument_is_answered_with_the_fix(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        SwiftLoader(**{"dataset": ROWS, **options}).start()
    assert isinstance(caught.value, (ValueError, TypeError))
    assert "\n" not in str(caught.value)


def build(*arguments: Any, **options: Any) -> SwiftLoader:
    return SwiftLoader(*arguments, validate=False, **options)


def use(loader: SwiftLoader, how: Callable[[SwiftLoader], object] = list) -> None:
    with loader:
        how(loader)


def twice(loader: SwiftLoader) -> None:
    first = iter(loader)
    next(first)
    iter(loader)
    next(first)


def after_close(how: Callable[[SwiftLoader], object]) -> None:
    loader = build(ROWS)
    loader.close()
    how(loader)


def on(how: Callable[[SwiftLoader], object], **options: Any) -> Callable[[], None]:
    return lambda: use(build(ROWS, **options), how)


USES: list[tuple[str, Callable[[], object], type[Exception], str]] = [
    ("as torch: by place", lambda: SwiftLoader(ROWS, 32, True), ConfigError, "batch_size=32"),
    ("too many", lambda: SwiftLoader(ROWS, None, 4, 1, 1, True, 7), ConfigError, "by name"),
    ("a loader", on(SwiftLoader), ConfigError, "give the data set"),
    ("a class", lambda: SwiftLoader.from_dataset(datasets.Numbers), ConfigError, "it is a class"),
    ("no data set", lambda: SwiftLoader.from_dataset(), ConfigError, "missing"),
    ("a data set", lambda: SwiftLoader.from_dataloader(ROWS), ConfigError, r"SwiftLoader\(dataset"),
    ("own", on(SwiftLoader.from_dataloader), ConfigError, "already"),
    ("of its own", lambda: SwiftLoader.from_dataloader(Shifting(ROWS)), ConfigError, "own way"),
    ("its indices", lambda: SwiftLoader.from_dataloader(Taking(ROWS)), ConfigError, "_index_samp"),
    ("its iterator", lambda: SwiftLoader.from_dataloader(Making(ROWS)), ConfigError, "_get_iter"),
    ("its way", lambda: SwiftLoader.from_dataloader(Collating(ROWS)), ConfigError, "_auto_coll"),
    ("its seed", lambda: SwiftLoader.from_dataloader(Seeding(ROWS)), ConfigError, "_get_shared"),
    ("stream, sampler", lambda: use(build(Stream(), sampler=[1])), ConfigError, "leave it out"),
    ("stream, shuffle", lambda: use(build(Stream(), shuffle=True)), ConfigError, "in the dataset"),
    ("stream, auto", lambda: use(build(Stream(), worker_per_consumer="auto")), ConfigError, "give"),
    ("stream, len", lambda: use(build(Stream()), len), TypeError, "without __len__"),
    ("flat batches", on(list, batch_sampler=[1, 2]), TypeError, "goes as sampler="),
    ("no class of one", lambda: SwiftLoader(NoItems), TypeError, "it needs __getitem__"),
    ("a lock", lambda: SwiftLoader(WithLock()), ShippingError, "Create it in the dataset's"),
    ("a file", lambda: SwiftLoader([open(__file__)]), ShippingError, "path"),  # noqa: SIM115
    ("shapes", lambda: SwiftLoader(Growing, {"n": 4}, 4), BatchError, "Pad or crop"),
    ("keys", lambda: SwiftLoader(OtherKeys, {"n": 4}, 4), BatchError, "Return the same keys"),
    ("objects", lambda: SwiftLoader(Objects, {"n": 4}, 4), BatchError, "or give a collate_fn"),
    ("kwargs", lambda: SwiftLoader(datasets.Numbers, {"m": 4}), TypeError, "argument 'm'"),
    ("collate", lambda: SwiftLoader(ROWS, collate_fn=no_argument), TypeError, "no_argument"),
    ("a breakpoint", lambda: SwiftLoader(Stops, {"n": 4}), RuntimeError, "worker_per_consumer=0"),
    ("consumers", on(list, nb_consumer=2), ClosedError, "nb_consumer"),
    ("rank", on(lambda it: it.start(2), nb_consumer=2), ConfigError, r"\[0, 2\)"),
    ("rank as text", on(lambda it: it.start("0")), ConfigError, "rank"),
    ("device first", on(lambda it: it.start("cuda:0")), ConfigError, "device="),
    ("device", on(lambda it: it.start(0, "gpu")), ConfigError, "'cuda:0'"),
    ("no mps", on(lambda it: it.start(0, "mps")), ConfigError, "use it here"),
    ("to_device", on(lambda it: it.start(to_device=3)), ConfigError, "callable"),
    ("too few", on(lambda it: it.start(0), nb_consumer=30), ConfigError, 'tail="pad"'),
    ("folder", on(list, benchmark_file="/nowhere/x"), ConfigError, "in a folder that"),
    ("trace", on(list, trace_file="/nowhere/x"), ConfigError, "in a folder that"),
    ("log", on(list, logger="/proc/nowhere/x"), ConfigError, "in a folder that"),
    ("twice at once", on(twice), ClosedError, "Build a second loader"),
    ("started", on(lambda it: (it.start(), it.start())), ClosedError, "before"),
    ("stats", on(SwiftLoader.stats), ClosedError, r"before start\(\)"),
    ("closed, iter", lambda: after_close(iter), ClosedError, "build a new one"),
    ("closed, start", lambda: after_close(SwiftLoader.start), ClosedError, "build a new one"),
    ("closed, state", lambda: after_close(lambda it: it.load_state_dict({})), ClosedError, "new"),
    ("state", on(lambda it: it.load_state_dict({})), StateError, "state_dict"),
    ("path", on(lambda it: it.load_state_dict("x")), StateError, "state_dict"),
    ("epoch", on(lambda it: it.set_epoch("1")), ConfigError, "epoch='1'"),
    ("big epoch", on(lambda it: it.set_epoch(2**70)), ConfigError, "at most"),
    ("call", on(lambda it: it.call_dataset("x")), ConfigError, "no such method"),
    ("attribute", on(lambda it: setattr(it, "batch_size", 3)), ConfigError, "with_options"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("do", "error", "says"), [row[1:] for row in USES], ids=[row[0] for row in USES]
)
def test_wrong_use_is_answered_with_the_fix(
    do: Callable[[], object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        do()


def test_a_dataloader_with_an_iterator_hung_on_it_is_refused() -> None:
    dataloader: DataLoader[Any] = DataLoader(ROWS)
    dataloader._get_iterator = lambda: iter([1])  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(ConfigError, match="_get_iterator"):
        SwiftLoader.from_dataloader(dataloader)


def test_a_length_of_a_dataloaders_own_is_not_lost_in_silence() -> None:
    with pytest.warns(RuntimeWarning, match="Long has a __len__ of its own") as caught:
        with SwiftLoader.from_dataloader(Long(ROWS, batch_size=5)) as loader:
            assert len(loader) == 4
    assert [one.filename for one in caught] == [__file__]


def test_completion_offers_what_users_call_and_nothing_else() -> None:
    with build(ROWS) as loader:
        for name in dir(loader):
            if not name.startswith("_"):
                assert getattr(SwiftLoader, name).__doc__, name


def test_numbers_of_numpy_are_numbers() -> None:
    with build(ROWS, batch_size=np.int64(5), nb_consumer=2) as loader:
        loader.start(np.int64(1))
        assert len(loader) == 2
