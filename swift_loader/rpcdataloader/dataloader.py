"""`RPCDataset` and `RPCDataloader`: a dataset on workers elsewhere, and its batches."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch.utils.data import BatchSampler, Dataset, RandomSampler, SequentialSampler

from swift_loader.errors import ConfigError
from swift_loader.loader.loader import SwiftLoader
from swift_loader.rpcdataloader.pinning import pinned
from swift_loader.rpcdataloader.rpc import address_of, rpc_async

__all__ = ["RPCDataloader", "RPCDataset"]


class RPCDataset(Dataset[Any]):
    """A dataset on the workers `workers` (``"host:port"``): ``dataset(*args, **kwargs)`` there.

    It is built on the first one at once, and raises what that raises; on all of them when a loader
    begins.
    """

    def __init__(
        self, workers: Sequence[str], dataset: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> None:
        if not workers:
            raise ConfigError("workers=[]: give at least one, as 'host:port'")
        self.workers = list(workers)
        self.factory = dataset
        self.args = args
        self.kwargs = kwargs
        self._length: int | None = None
        self._first = rpc_async(self.workers[0], dataset, args, kwargs, rref=True).wait()

    def __len__(self) -> int:
        if self._length is None:
            self._length = int(rpc_async(self.workers[0], len, [self._first]).wait())
        return self._length

    def __getitem__(self, index: int) -> Any:
        return rpc_async(self.workers[0], operator.getitem, [self._first, index]).wait()


class RPCDataloader:
    """Batches of an `RPCDataset`, made by its workers, in the sampler's order.

    Parameters are those of `torch.utils.data.DataLoader` of the same names. `timeout`: seconds
    for which a worker that can't be reached is tried again. `prefetch_factor`: batches under way,
    for each worker.

    Random draws of the dataset are seeded for each batch, as `swift_loader.SwiftLoader` does.
    """

    def __init__(
        self,
        dataset: RPCDataset,
        batch_size: int | None = 1,
        shuffle: bool = False,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 120,
        *,
        prefetch_factor: int = 2,
    ) -> None:
        if sampler is None:
            sampler = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
        if batch_size is not None and batch_sampler is None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.dataset = dataset
        self.batch_size = batch_size
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.collate_fn = collate_fn
        self.pin_memory = pin_memory
        self.timeout = timeout
        self.prefetch_factor = prefetch_factor
        single = batch_sampler is None
        self._loader = SwiftLoader(
            _built,
            {"factory": dataset.factory, "args": dataset.args, "kwargs": dataset.kwargs},
            worker_per_consumer=0,
            sampler=sampler if single else None,
            batch_sampler=batch_sampler,
            collate_fn=operator.itemgetter(0) if single else collate_fn,
            data_queue_size=max(2, prefetch_factor * len(dataset.workers)),
            validate=False,
            benchmark=False,
            timeout=None,
            remote_workers=[address_of(worker) for worker in dataset.workers],
            remote_timeout=timeout,
        )

    def __len__(self) -> int:
        return len(self.sampler if self.batch_sampler is None else self.batch_sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            yield pinned(batch) if self.pin_memory else batch

    def close(self) -> None:
        """End the connections to the workers; happens by itself when the loader is dropped."""
        self._loader.close()


def _built(factory: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return factory(*args, **kwargs)
