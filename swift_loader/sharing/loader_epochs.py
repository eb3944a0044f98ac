"""What a producer reads from: any loader, epoch by epoch, into memory that can be shared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

from torch.utils.data import DataLoader

from swift_loader.errors import ClosedError
from swift_loader.loader.epoch import EpochIterator
from swift_loader.loader.handing_on import size_of
from swift_loader.loader.loader import SwiftLoader
from swift_loader.sharing.cut import nb_samples_of
from swift_loader.sharing.messages import EpochBegins
from swift_loader.sharing.regions import SharedBatch

__all__ = ["LoaderEpochs"]

_END = object()


class LoaderEpochs:
    """Iterates `loader`; `put` brings a batch into shared memory.

    `nb_samples` of an epoch, where the caller knows it; a `SwiftLoader` and a torch `DataLoader`
    know it themselves, and of any other iterable it is known once an epoch was counted.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        put: Callable[[Any], SharedBatch],
        nb_samples: int | None,
    ) -> None:
        self._loader = loader
        self._put = put
        self._nb_samples = nb_samples
        self._iterator: Iterator[Any] | None = None
        self._epoch = -1
        self._counted = 0  # samples
        self._nb_batches = 0
        self._max_batches: int | None = None
        self._counts = nb_samples is None and not isinstance(loader, (SwiftLoader, DataLoader))

    def begin(self) -> EpochBegins:
        """Begin the loader's next epoch."""
        self._iterator = iter(self._loader)
        self._counted = 0
        self._nb_batches = 0
        loader = self._loader
        # An iterator has no end for each epoch: where it has a length, that says it.
        self._max_batches = _length(loader) if self._iterator is loader else None
        if isinstance(loader, SwiftLoader) and isinstance(self._iterator, EpochIterator):
            part = self._iterator.part
            self._epoch = part.epoch
            first = part.count - len(part)
            nb_batches, nb_samples = _sizes(loader, part.epoch, 0)
            if nb_batches is not None:
                nb_batches += first
            return EpochBegins(part.epoch, first, nb_batches, nb_samples)
        self._epoch += 1
        return self._whole(self._epoch)

    def next(self) -> SharedBatch | None:
        """The next batch; None at the end of the epoch."""
        assert self._iterator is not None
        over = self._max_batches is not None and self._nb_batches >= self._max_batches
        batch = _END if over else next(self._iterator, _END)
        if batch is _END:
            if self._counts:
                self._nb_samples = self._counted
            return None
        self._nb_batches += 1
        if self._counts:
            self._count(batch)
        return self._put(batch)

    def end(self) -> None:
        """Leave the epoch, at its end or before."""
        self._iterator = None

    def following(self) -> EpochBegins:
        """The epoch after this one."""
        return self._whole(self._epoch + 1)

    def rest(self, first: int) -> EpochBegins:
        """This epoch as somebody sees it who gets its batches from `first` on."""
        loader, epoch = self._loader, self._epoch
        if isinstance(loader, SwiftLoader):
            nb_batches, nb_samples = _sizes(loader, epoch, first)
            return EpochBegins(
                epoch, first, None if nb_batches is None else first + nb_batches, nb_samples
            )
        whole = self._whole(epoch)
        left: int | None = None
        if isinstance(loader, DataLoader) and loader.batch_size and whole.nb_samples is not None:
            left = max(0, whole.nb_samples - first * loader.batch_size)
        return EpochBegins(epoch, first, whole.nb_batches, left)

    def _whole(self, epoch: int) -> EpochBegins:
        loader = self._loader
        if isinstance(loader, SwiftLoader):
            return EpochBegins(epoch, 0, *_sizes(loader, epoch, 0))
        return EpochBegins(epoch, 0, _length(loader), _nb_samples(loader) or self._nb_samples)

    def _count(self, batch: Any) -> None:
        try:
            self._counted += nb_samples_of(batch)
        except ValueError:  # batches without samples to count: their number stays unknown
            self._counts = False


def _sizes(loader: SwiftLoader, epoch: int, first: int) -> tuple[int | None, int | None]:
    """Batches and samples of an epoch from batch `first` on; None where they can't be told."""
    try:
        return size_of(loader, epoch, first)
    except ClosedError:  # a stream, or a sampler of the user's
        return None, None


def _length(loader: Iterable[Any]) -> int | None:
    if not isinstance(loader, Sized):
        return None
    try:
        return len(loader)
    except TypeError:  # a DataLoader of an iterable dataset says so only when asked
        return None


def _nb_samples(loader: Iterable[Any]) -> int | None:
    if not isinstance(loader, DataLoader) or loader.batch_size is None:
        return None
    nb_batches = _length(loader)
    if nb_batches is None:
        return None
    if loader.drop_last:
        return nb_batches * loader.batch_size
    return len(loader.sampler) if isinstance(loader.sampler, Sized) else None
