"""`DataLoader2`: a graph of pipes and a reading service, as one iterable.

Scripts that seed before each epoch get the same order for the same seed; those that seed once, or
never, get another order in every epoch, from one seed (see `epochs`).

What was yielded of an epoch is a number too. A state that is taken in the middle holds it, and a
restored loader makes the epoch's items again and passes over that many. This is exact whatever
buffers the pipes hold (a shuffle buffer is never saved), and costs the making of the items that are
passed over. What the pipes draw from the global generators of `random`, `numpy` and `torch` in the
training process is not in the state.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar

from torch.utils.data import IterDataPipe, MapDataPipe

from swift_loader.dataloader2.epochs import Epochs
from swift_loader.dataloader2.error import PauseIteration
from swift_loader.dataloader2.graph import (
    DataPipe,
    clone,
    deserialize_datapipe,
    serialize_datapipe,
)
from swift_loader.dataloader2.iter.flow import MapToIterConverter
from swift_loader.dataloader2.iterator import DataLoader2Iterator
from swift_loader.dataloader2.random import SeedGenerator
from swift_loader.dataloader2.reading_service.in_process import InProcessReadingService
from swift_loader.dataloader2.reading_service.interface import (
    CheckpointableReadingServiceInterface,
    ReadingServiceInterface,
)
from swift_loader.errors import StateError

__all__ = ["DataLoader2", "DataLoader2Iterator"]

T_co = TypeVar("T_co", covariant=True)

_AdapterFn = Callable[[DataPipe], DataPipe]


class DataLoader2(Generic[T_co]):
    """Iterates a graph of data pipes as its reading service says.

    `datapipe`: the last pipe of the graph. A copy is made (by pickle, else by dill), so the same
    pipe can go into several loaders. A map-style pipe yields its items in the order of
    `range(len(pipe))`. `None` only where `load_state_dict` follows. `datapipe_adapter_fn`:
    function(s) from pipe to pipe, applied to the copy in order. `reading_service`: how to execute
    the graph; a copy is made. `None`: in this process.

    One iterator at a time: making a new one ends the one before. Workers and threads of the service
    live from the first iteration to `shutdown`, which `with`, `del` and an error in the graph call
    too.
    """

    def __init__(
        self,
        datapipe: DataPipe | None,
        datapipe_adapter_fn: Iterable[_AdapterFn] | _AdapterFn | None = None,
        reading_service: ReadingServiceInterface | None = None,
    ) -> None:
        self._terminated = True  # until there is something to shut down
        self.datapipe_adapter_fns = _as_list(datapipe_adapter_fn)
        self.datapipe: DataPipe | None = None
        self._datapipe_before_reading_service_adapt: DataPipe | None = None
        if datapipe is not None:
            self._take_over(clone(_iterable(datapipe)))
        self.reading_service = clone(reading_service)
        self._executor = self.reading_service or InProcessReadingService()
        self.reading_service_state: bytes | None = None  # set by a loaded state
        self.valid_iterator_id: int | None = None
        self._datapipe_iter: Iterator[T_co] | None = None
        self._adapted = False
        self._reset_iter = True
        self._is_paused = False
        self._in_epoch = False

        self._epochs = Epochs()
        self._state_dict: dict[str, Any] | None = None
        self._terminated = False

    def _take_over(self, datapipe: DataPipe) -> None:
        for adapter_fn in self.datapipe_adapter_fns:
            datapipe = adapter_fn(datapipe)
        self.datapipe = datapipe
        self._datapipe_before_reading_service_adapt = clone(datapipe)

    def __iter__(self) -> DataLoader2Iterator[T_co]:
        """Begin an epoch. Without a `next` in between, a second call goes on with the same epoch.

        `RuntimeError` without a graph and after `shutdown`. `TypeError` where a state of a reading
        service was loaded and this service can't take it. `StateError` where a restored epoch is
        shorter than what was yielded of it.
        """
        if self.datapipe is None:
            raise RuntimeError(
                "Please provide datapipe or use load_state_dict to load datapipe from state"
            )
        if self._terminated:
            raise RuntimeError(
                "Cannot iterate over the DataLoader as it has already been shut down"
            )
        if self._reset_iter:
            self._begin_epoch(self.datapipe)
        self.valid_iterator_id = 0 if self.valid_iterator_id is None else self.valid_iterator_id + 1
        return DataLoader2Iterator(self, self.valid_iterator_id)

    def _begin_epoch(self, datapipe: DataPipe) -> None:
        if self._in_epoch:
            self._in_epoch = False
            self._executor.finalize_iteration()
        nb_to_pass_over = self._epochs.begin()
        if not self._adapted:
            datapipe = self._initialized(datapipe)
            self._adapted = True
        iter_reset_fn = self._executor.initialize_iteration(self._epochs.generator)
        if iter_reset_fn is not None:
            datapipe = iter_reset_fn(datapipe)
        self.datapipe = datapipe
        self._in_epoch = True
        self._is_paused = False
        self._datapipe_iter = iter(datapipe)
        self._pass_over(nb_to_pass_over)
        self._reset_iter = False

    def _initialized(self, datapipe: DataPipe) -> DataPipe:
        if self.reading_service_state is None:
            return self._executor.initialize(datapipe)
        if not isinstance(self._executor, CheckpointableReadingServiceInterface):
            raise TypeError("Cannot restore from non-checkpointable reading service")
        return self._executor.restore(datapipe, self.reading_service_state)

    def _pass_over(self, nb_item: int) -> None:
        """Make and drop the items that were yielded before the state was taken."""
        if self.reading_service_state is not None and getattr(
            self._executor, "restores_position", False
        ):
            return
        assert self._datapipe_iter is not None
        for i in range(nb_item):
            try:
                next(self._datapipe_iter)
            except StopIteration:
                raise StateError(
                    f"The state says that {nb_item} items of this epoch were yielded; the graph "
                    f"yields {i}. Its data, or the number of ranks or workers, has changed."
                ) from None

    def _next(self) -> T_co:
        self._reset_iter = True
        if self._datapipe_iter is None:
            raise RuntimeError("This iterator has ended because its DataLoader2 was shut down")
        if self._is_paused:
            raise StopIteration
        try:
            item = next(self._datapipe_iter)
        except PauseIteration:
            raise StopIteration from None
        except StopIteration:
            self._epochs.end()
            if self._in_epoch:
                self._in_epoch = False
                self._executor.finalize_iteration()
            raise
        except Exception:
            self.shutdown()
            raise
        self._epochs.nb_yielded += 1
        return item

    def __len__(self) -> int:
        """How many items an epoch yields. `TypeError` where that is not known.

        Known where the graph has a length and is not shared with other ranks.
        """
        datapipe = self._datapipe_before_reading_service_adapt
        length_of = getattr(self._executor, "length_of", None)
        if length_of is None or datapipe is None:
            raise TypeError(
                f"{type(self._executor).__name__} does not know how many items it yields"
            )
        return int(length_of(datapipe))

    def __bool__(self) -> bool:
        return True

    def seed(self, seed: int) -> None:
        """Let the next epoch be the first of the base seed `seed`, and the following ones its next.

        `ValueError` from 2**64 on; negative seeds wrap round. Right after a state was loaded, the
        seed of the epoch in which it was taken leaves the position as it is; any other drops it.
        """
        self._epochs.seed(seed)

    def shutdown(self) -> None:
        """End the epoch, and everything that the reading service holds. Again is a no-op."""
        if self._terminated:
            return
        self._terminated = True
        self._reset_iter = True
        self._in_epoch = False
        self._executor.finalize_iteration()
        self._executor.finalize()
        self._datapipe_iter = None

    def __del__(self) -> None:
        if not self.__dict__.get("_terminated", True):
            self.shutdown()

    def __enter__(self) -> DataLoader2[T_co]:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: a dict that pickles.

        | key | value |
        |---|---|
        | `serialized_datapipe` | the graph (bytes), after adapters, before the reading service |
        | `reading_service_state` | bytes of the service, or `None` |
        | `randomness_state` | seed, is it unused, seed generator, that at the epoch's start |
        | `epoch_state` | base seed, number, items yielded, finished?; `None` before the first |

        Right after a state was loaded it is that state.
        """
        if self.valid_iterator_id is None and self._state_dict is not None:
            return self._state_dict
        assert self._datapipe_before_reading_service_adapt is not None, "there is no graph"
        service_state = None
        if isinstance(self.reading_service, CheckpointableReadingServiceInterface):
            service_state = self.reading_service.checkpoint()
        return {
            "serialized_datapipe": serialize_datapipe(self._datapipe_before_reading_service_adapt),
            "reading_service_state": service_state,
            **self._epochs.state(),
        }

    @classmethod
    def from_state(
        cls, state: dict[str, Any], reading_service: ReadingServiceInterface | None
    ) -> DataLoader2[T_co]:
        """A loader that goes on where `state` was taken. A pickle: load states you trust only."""
        loader = cls(
            deserialize_datapipe(state["serialized_datapipe"]), reading_service=reading_service
        )
        loader._load(state)
        return loader

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, with its graph; adapters are applied to it again.

        `RuntimeError` where this loader was iterated already. States are pickles: load trusted ones
        only.
        """
        if self._datapipe_iter is not None:
            raise RuntimeError(
                "An iterator of this DataLoader2 has already been created, so `load_state_dict` "
                "can't be called. Create a new DataLoader2 to load a state."
            )
        self._take_over(deserialize_datapipe(state_dict["serialized_datapipe"]))
        self._load(state_dict)

    def _load(self, state: dict[str, Any]) -> None:
        self._state_dict = state
        self.reading_service_state = state["reading_service_state"]
        self._epochs.load(state)

    def _restore_checkpoint_beginning_of_epoch(self) -> None:
        """Let the next epoch be the current one, or that of a loaded state, from its start."""
        self._epochs.restart()

    @property
    def _seed_generator(self) -> SeedGenerator:
        return self._epochs.generator

    @property
    def _initial_seed_generator(self) -> SeedGenerator:
        return self._epochs.initial_generator

    def _pause(self) -> None:
        if not hasattr(self._executor, "_pause"):
            warnings.warn("ReadingService doesn't support `pause`.", stacklevel=3)
            return
        self._is_paused = True
        pause_fn = self._executor._pause()
        if pause_fn is not None:
            self.datapipe = pause_fn(self.datapipe)

    def _resume(self) -> None:
        if not hasattr(self._executor, "_resume"):
            warnings.warn("ReadingService doesn't support `resume`.", stacklevel=3)
            return
        if not self._is_paused:
            warnings.warn(
                "Resume is called when `DataLoader2` is not paused. No operation is performed.",
                stacklevel=3,
            )
            return
        resume_fn = self._executor._resume()
        if resume_fn is not None:
            self.datapipe = resume_fn(self.datapipe)
        self._is_paused = False

    def _limit(self, num_batches: int | None) -> None:
        if not hasattr(self._executor, "_limit"):
            warnings.warn("ReadingService doesn't support `limit`.", stacklevel=3)
            return
        limit_fn = self._executor._limit(num_batches)
        if limit_fn is not None:
            self.datapipe = limit_fn(self.datapipe, num_batches)


def _iterable(datapipe: DataPipe) -> IterDataPipe[Any]:
    return MapToIterConverter(datapipe) if isinstance(datapipe, MapDataPipe) else datapipe


def _as_list(fns: Iterable[_AdapterFn] | _AdapterFn | None) -> list[_AdapterFn]:
    if fns is None:
        return []
    return list(fns) if isinstance(fns, Iterable) else [fns]
