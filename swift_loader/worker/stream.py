"""Making batches of a stream: an `IterableDataset`, a generator, a data pipe.

A stream has no sample numbers, so a worker owns a shard of it, and a batch number counts within
the shard: batch ``k`` is batch ``k // workers`` of worker ``k % workers``. Each item comes once
over all consumers and workers. Where the dataset asks `torch.utils.data.get_worker_info()` for its
place, or is a graph of data pipes with a `sharding_filter`, it shards itself; from any other, a
worker takes every n-th item.

A batch that is asked for out of turn (a worker was replaced, a run resumed) is reached by going
through the stream again, or from the dataset's own `state_dict` where a loaded state has it.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.utils.data
from torch.utils.data._utils import worker as torch_worker

from swift_loader.batch.fetch import ENDS, SKIP, Bad
from swift_loader.batch.seeding import seed_generators
from swift_loader.plan import Plan
from swift_loader.transport.messages import Made, Make
from swift_loader.transport.written_slots import WrittenSlots
from swift_loader.worker.maker import EndOfShard, Job, MakeError, make_batch
from swift_loader.worker.place import Place
from swift_loader.worker.progress import Progress
from swift_loader.worker.recipe import Recipe, build_dataset

__all__ = ["StreamMaker"]


class _WatchedInfo(torch_worker.WorkerInfo):
    """Tells whether anybody asked for the place: who does, shards by it."""

    asked: bool

    def __init__(self, place: int, places: int, seed: int, dataset: Any) -> None:
        self.__dict__.update(
            _id=place, _num_workers=places, seed=seed, dataset=dataset, asked=False
        )

    @property
    def id(self) -> int:
        self.__dict__["asked"] = True
        found: int = self.__dict__["_id"]
        return found

    @property
    def num_workers(self) -> int:
        self.__dict__["asked"] = True
        found: int = self.__dict__["_num_workers"]
        return found

    def __repr__(self) -> str:
        return f"WorkerInfo(id={self.id}, num_workers={self.num_workers}, seed={self.seed})"


class StreamMaker:
    """Makes the batches of one worker's shard. Instead of a `Maker`."""

    def __init__(
        self, recipe: Recipe, dataset: Any, place: Place, index: int, progress: Progress
    ) -> None:
        self._recipe = recipe
        self._dataset = dataset
        self._index = index
        self._workers = place.worker_per_consumer
        self._place = place.consumer_index * self._workers + index
        self._places = place.nb_consumer * self._workers
        self._progress = progress
        self._items: Iterator[Any] | None = None
        self._used = False  # an iterator can't be begun again
        self._epoch = -1
        self._next_batch = 0
        self._position = 0
        self._ended = False  # the shard: its dataset may be at the beginning again

    def job(self, order: Make, plan: Plan, consumer: int) -> Job:
        """What is to be done for `order`, after the jobs before it."""
        return partial(self._make, order, plan, consumer)

    def _make(self, order: Make, plan: Plan, consumer: int, slots: WrittenSlots) -> Made:
        read = partial(self._read_batch, order, plan, consumer)
        try:
            made = make_batch(
                self._recipe, self._progress, order, slots, read, "reading the stream"
            )
        except MakeError:
            self._epoch = -1  # nobody knows where the stream stands now
            raise
        return made._replace(state=self._state())

    def _read_batch(self, order: Make, plan: Plan, consumer: int) -> tuple[list[Any], list[Bad]]:
        """The items of the batch that is wanted, read after those before it."""
        number = order.number
        wanted = number.k // self._workers
        if number.epoch != self._epoch or wanted < self._next_batch or order.indices:
            self._begin(number.epoch, plan, order.indices)
        while True:
            k = self._next_batch * self._workers + self._index
            seed_generators(plan.batch_seed(number.epoch, consumer, k))
            samples, bad = self._read(plan.batch_size)
            if not samples or (plan.tail == "drop" and len(samples) < plan.batch_size):
                raise EndOfShard
            self._next_batch += 1
            if self._next_batch > wanted:
                return samples, bad

    def close(self) -> None:
        self._items = None

    def _begin(self, epoch: int, plan: Plan, saved: bytes) -> None:
        """Go to the beginning of the shard, or to where the dataset's saved state stands."""
        if self._used and iter(self._dataset) is self._dataset:
            self._dataset, _ = build_dataset(self._recipe)
        self._used = True
        dataset = self._dataset
        self._next_batch, self._position, self._ended = 0, 0, False
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(epoch)
        seed = plan.batch_seed(epoch, 0, 0)
        info = _WatchedInfo(self._place, self._places, seed % 2**32, dataset)
        torch_worker._worker_info = info
        shards_itself = _is_pipe(dataset) and self._shard_graph(dataset, seed)
        if saved:
            self._next_batch, self._position, self._ended, state = pickle.loads(saved)
            dataset.load_state_dict(state)
        items = iter(()) if self._ended else iter(dataset)
        self._items = self._shard(items, info, shards_itself)
        self._epoch = epoch

    def _shard(
        self, items: Iterator[Any], info: _WatchedInfo, shards_itself: bool
    ) -> Iterator[Any]:
        """This worker's items; by its first item a dataset has asked for its place, or won't."""
        for item in items:
            mine = shards_itself or info.asked or self._position % self._places == self._place
            self._position += 1
            if mine:
                yield item

    def _shard_graph(self, dataset: Any, seed: int) -> bool:
        """Same shuffle in all workers, then a share for each; False: the graph has no shards."""
        from torch.utils.data import graph_settings
        from torch.utils.data.graph import traverse_dps

        generator = torch.Generator()
        generator.manual_seed(seed % 2**63)
        graph_settings.apply_random_seed(dataset, generator)
        graph_settings.apply_sharding(dataset, self._places, self._place)
        pipes = graph_settings.get_all_graph_pipes(traverse_dps(dataset))
        return any(hasattr(pipe, "apply_sharding") for pipe in pipes)

    def _read(self, count: int) -> tuple[list[Any], list[Bad]]:
        samples: list[Any] = []
        bad: list[Bad] = []
        assert self._items is not None
        while len(samples) < count:
            self._progress.sample[0] = self._position
            try:
                samples.append(next(self._items))
            except StopIteration:
                self._ended = True
                break
            except BaseException as error:
                if self._recipe.on_error == "raise" or isinstance(error, ENDS):
                    raise
                stand_in = self._stand_in(error)
                bad.append(Bad(self._position, error, replaced=stand_in is not SKIP))
                if stand_in is not SKIP:
                    samples.append(stand_in)
        return samples, bad

    def _stand_in(self, error: BaseException) -> Any:
        """What takes the place of an item that raised: a stream goes on with the next one."""
        on_error = self._recipe.on_error
        return SKIP if isinstance(on_error, str) else on_error(error, self._position)

    def _state(self) -> bytes:
        """Where the stream stands after this batch, if the dataset can tell."""
        if not hasattr(self._dataset, "load_state_dict"):
            return b""
        state = self._dataset.state_dict()
        return pickle.dumps((self._next_batch, self._position, self._ended, state), 5)


def _is_pipe(dataset: Any) -> bool:
    """Whether it is one of torch's data pipes. A torch that has dropped them has none."""
    kind = getattr(torch.utils.data, "IterDataPipe", None)
    return kind is not None and isinstance(dataset, kind)
