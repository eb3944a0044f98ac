"""A worker's part of a stream: its items, one after another, and where it stands.

A stream that has ``state_dict`` and ``load_state_dict``, or whose iterator has, is saved and loaded
as torchdata's StatefulDataLoader does it: first the stream's state, then ``iter()``, then the
iterator's state. A state that was saved at the end of an epoch is loaded in the same order; where
nothing is left behind it, ``iter()`` begins the next epoch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.data
from torch.utils.data._utils import worker as torch_worker

from swift_loader.batch.plain import from_plain, to_plain
from swift_loader.batch.wrapped import listeners_of
from swift_loader.errors import StateError
from swift_loader.plan import Plan
from swift_loader.worker.split import Split

__all__ = ["BeginAgain", "Shard", "StreamInfo", "is_used_up"]


class BeginAgain(Exception):
    """The stream was told a place that is not its own; it was built again, and must be begun."""


class StreamInfo(torch_worker.WorkerInfo):
    """What `get_worker_info()` gives in a worker of a stream: the place that `Split` has decided.

    `seed` is another one in each epoch; less `id`, it is the same in all workers.
    """

    rng = None  # newer releases of torch have these, for workers that are threads
    worker_method = "multiprocessing"

    def __init__(self, split: Split, seed: int, dataset: Any, at_birth: bool = False) -> None:
        self.__dict__.update(_split=split, _seed=seed, _dataset=dataset, _at_birth=at_birth)

    @property
    def id(self) -> int:
        return self._ask("id")[0]

    @property
    def num_workers(self) -> int:
        return self._ask("num_workers")[1]

    @property
    def seed(self) -> int:
        seed: int = self.__dict__["_seed"]
        place: tuple[int, int] = self.__dict__["_split"].place
        return seed + place[0]

    @property
    def dataset(self) -> Any:
        if self.__dict__["_at_birth"]:  # a worker_init_fn that gives the stream its part
            self._ask("dataset")
        return self.__dict__["_dataset"]

    def _ask(self, name: str) -> tuple[int, int]:
        own = self.__dict__
        place: tuple[int, int] = own["_split"].ask(name, own["_at_birth"])
        return place

    def __repr__(self) -> str:
        return f"WorkerInfo(id={self.id}, num_workers={self.num_workers}, seed={self.seed})"


class Shard(Iterator[Any]):
    """The items of a worker. `begin` starts an epoch, and may do so at any time.

    `build` makes the stream anew, as at the worker's birth. `announces`: worker info is given.
    """

    tells_always = False  # a state may cost much

    def __init__(
        self, dataset: Any, split: Split, build: Callable[[], Any], announces: bool = True
    ) -> None:
        self._dataset = dataset
        self.split = split
        self._build = build
        self._announces = announces
        self._epoch, self._seed = 0, 0
        self._iterator: Any = None
        self._shares_out = False  # data pipes: what comes is this worker's
        self._left_early = False
        self._restart: Callable[[], None] | None = None  # where an iterator is spent at once
        self._saved: dict[str, Any] | None = None  # not read on since
        self.position = 0  # items that the stream has given, of this and of other workers
        self.ended = False

    def begin(self, epoch: int, plan: Plan, saved: dict[str, Any] | None) -> None:
        """Go to the beginning of an epoch, or to where a saved state stands.

        Raises `StateError` where the stream refuses its state, and what `iter` raises.
        """
        self._epoch, self._seed = epoch, plan.batch_seed(epoch, 0, 0)
        own = self._iterator is self._dataset
        if self._left_early and (own or _keeps_state(self._dataset)):
            self._dataset = self._build()  # it would go on in the middle
        self._restart = self._build_again if own and not self._left_early else None
        self._left_early = True
        self.position, self.ended, self._saved = 0, False, saved
        self.split.begin_epoch()
        with self.split.watching():
            if saved is None:
                self._enter()
            else:
                self._load(saved)

    def __next__(self) -> Any:
        """The next item. Raises `BeginAgain`, `StopIteration`, and what the stream raises."""
        split = self.split
        while not self.ended:
            self._saved = None
            if split.watches:
                with split.watching():
                    item = self._next()
                if not split.settle():
                    self._dataset, self._left_early = self._build(), False
                    raise BeginAgain
            else:
                item = self._next()
            if item is _NOTHING:
                self.ended, self._left_early = True, False
                break
            index, count = split.place
            mine = self._shares_out or split.asked or self.position % count == index
            self.position += 1
            if mine:
                return item
        raise StopIteration

    def state(self, batch: int, over: bool = False) -> bytes:
        """Where it stands before batch `batch` of its own; empty where the stream can't tell.

        `over`: at its end, which is the beginning of its next epoch.
        """
        dataset, iterator, saved = self._dataset, self._iterator, self._saved
        if not _keeps_state(dataset) and not _keeps_state(iterator):
            return b""
        try:
            own = iterator is dataset
            states = {
                "dataset": None if own else _state_of(dataset, "the stream's state"),
                "iterator": _state_of(iterator, "the stream's state"),
            }
            if saved is not None:
                states = {name: saved[name] for name in states}
            return json.dumps(
                {
                    "batch": 0 if over else batch,
                    "position": 0 if over else self.position,
                    "ended": self.ended and not over,
                    "over": over,
                    "split": self.split.by,
                    **states,
                }
            ).encode()
        except Exception as error:  # noqa: BLE001 - raised where somebody asks for the state
            return json.dumps({"why_not": f"{type(error).__name__}: {error}"}).encode()

    def close(self) -> None:
        self._iterator = None

    def _next(self) -> Any:
        """The next item of all; `_NOTHING` at the end."""
        item = next(self._iterator, _NOTHING)
        restart, self._restart = self._restart, None
        if item is _NOTHING and restart is not None:
            restart()
            item = next(self._iterator, _NOTHING)
        return item

    def _enter(self) -> None:
        """The beginning of an epoch, of a stream that is as it was at the end of the last one."""
        dataset = self._dataset
        if self._announces:
            torch_worker._worker_info = StreamInfo(self.split, self._seed % 2**32, dataset)
        for listener in listeners_of(dataset):
            listener.set_epoch(self._epoch)
        self._shares_out = self._share_out()
        self._iterator = iter(dataset)

    def _build_again(self) -> None:
        self._dataset = self._build()
        self._enter()

    def _load(self, saved: dict[str, Any]) -> None:
        self.split.resumed(saved["split"])
        self.position, self.ended = saved["position"], saved["ended"]
        dataset = self._dataset
        for listener in listeners_of(dataset):
            listener.set_epoch(self._epoch)
        _load_state(dataset, saved["dataset"])
        if saved["over"]:
            self._restart = self._enter  # the loaded state is that of the end of another epoch
        self._enter()
        _load_state(self._iterator, saved["iterator"])

    def _share_out(self) -> bool:
        """Share out the items of data pipes: the same shuffle in all workers, then a part each.

        False: it is no data pipe, or one without a `sharding_filter`.
        """
        kind = getattr(torch.utils.data, "IterDataPipe", None)  # a torch that has dropped them
        if kind is None or not isinstance(self._dataset, kind):
            return False
        from torch.utils.data import graph_settings
        from torch.utils.data.graph import traverse_dps

        generator = torch.Generator()
        generator.manual_seed(self._seed % 2**63)
        graph_settings.apply_random_seed(self._dataset, generator)
        pipes = graph_settings.get_all_graph_pipes(traverse_dps(self._dataset))
        if not any(hasattr(pipe, "apply_sharding") for pipe in pipes):
            return False
        index, count = self.split.ask_for_pipes()
        graph_settings.apply_sharding(self._dataset, count, index)
        return True


_NOTHING = object()  # stands for the end of a stream


def is_used_up(dataset: Any) -> bool:
    """Whether `iter` goes on where the stream was left: its own iterator, or one with a state."""
    return hasattr(type(dataset), "__next__") or _keeps_state(dataset)


def _keeps_state(part: Any) -> bool:
    return callable(getattr(part, "state_dict", None)) and callable(
        getattr(part, "load_state_dict", None)
    )


def _state_of(part: Any, field: str) -> Any:
    """What `part` says of itself as plain data, in a list; None: it keeps no state."""
    return [to_plain(part.state_dict(), field)] if _keeps_state(part) else None


def _load_state(part: Any, saved: Any) -> None:
    if saved is None or not _keeps_state(part):
        return
    state = from_plain(saved[0], "the stream's state")
    try:
        part.load_state_dict(state)
    except Exception as error:
        raise StateError(
            f"{type(part).__qualname__}.load_state_dict refused the stream's saved state: "
            f"{type(error).__name__}: {error}"
        ) from error
