"""How a loader is made: by its arguments, of a data set or a `DataLoader`, and as a copy.

The signature is for people, type checkers and editors, which read source. A test compares it with
the definitions in `swift_loader.loader.options`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import torch

from swift_loader.batch.fetch import OnError
from swift_loader.errors import refuse
from swift_loader.loader.copying import packed, rebuilt
from swift_loader.loader.engine import Engine
from swift_loader.loader.from_torch import dataset_and_options
from swift_loader.loader.given import given_by_name
from swift_loader.loader.names import by_own_names
from swift_loader.pipeline.elsewhere import RemoteWorkers

__all__ = ["Construction"]

T = TypeVar("T", bound="Construction")


class Construction:
    """Takes the arguments of a loader; `_set_up` gets those that were given, by name."""

    _given: dict[str, Any]  # those that are not large
    _engine: Engine

    @given_by_name
    def __init__(
        self,
        dataset_class: Callable[..., Any] | Any = None,
        dataset_kwargs: Mapping[str, Any] | None = None,
        batch_size: int | None = 1,
        nb_consumer: int = 1,
        worker_per_consumer: int | Literal["auto"] = 1,
        shuffle: bool = False,
        *,
        seed: int | None = None,
        seed_number: int | None = None,
        seed_numer: int | None = None,
        data_queue_size: int | None = None,
        message_queue_size: int = 10,
        max_buffer_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        logger: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        batch_encoder: Callable[[Any], bytes] | None = None,
        batch_decoder: Callable[[bytes], Any] | None = None,
        nearby_shuffle: int | None = None,
        benchmark: bool = True,
        benchmark_file: str | os.PathLike[str] | None = None,
        validate: bool = True,
        multithread: bool = True,
        max_nb_batch_on_device: int = 1,
        tail: Literal["balanced", "drop", "pad"] = "balanced",
        in_order: bool = True,
        timeout: float | None = 600.0,
        on_timeout: Literal["raise", "restart"] = "raise",
        worker_init_fn: Callable[[int], None] | None = None,
        threads_per_worker: int = 1,
        on_error: OnError = "raise",
        max_bad_samples: int | None = None,
        max_worker_restarts: int = 10,
        worker_affinity: Sequence[int] | Sequence[Sequence[int]] | None = None,
        trace_file: str | os.PathLike[str] | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Sequence[Any]] | None = None,
        remote_workers: str | RemoteWorkers | Sequence[str | RemoteWorkers] | None = None,
        remote_key: str | os.PathLike[str] | Literal[False] | None = None,
        remote_timeout: float = 30.0,
        equal_steps: bool = False,
        prefetch_epochs: int = 1,
        stream_split: Literal["auto", "workers", "ranks"] = "auto",
        start_method: Literal["auto", "main", "fresh", "fork"] = "auto",
        transform: Callable[[Any], Any] | None = None,
        # Torch's names, with torch's meaning.
        dataset: Any = None,
        num_workers: int | None = None,
        drop_last: bool | None = None,
        prefetch_factor: int | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        pin_memory: bool = False,
        pin_memory_device: str = "",
        persistent_workers: bool | None = None,
    ) -> None:
        """See `SwiftLoader`. `given_by_name` does what there is to do."""

    @classmethod
    def from_dataset(cls: type[T], dataset: Any, *args: Any, **kwargs: Any) -> T:
        """A loader of a dataset that is built already; it travels to the workers by pickle.

        The other arguments are those of the class, from `batch_size` on.
        """
        if isinstance(dataset, type):
            refuse(
                "dataset", dataset, "it is a class: SwiftLoader(...) takes it, with its arguments"
            )
        return cls(dataset, None, *args, **kwargs)

    @classmethod
    def from_dataloader(cls: type[T], torch_dataloader: Any, **options: Any) -> T:
        """A loader with the dataset and the arguments of torch's `DataLoader`: a one-line try.

        The batches are the same, but for the order where it was shuffled: that is this loader's. A
        sampler that you brought keeps its own. `options` are those of the class and go before what
        is found; `swift_loader.loader.from_torch` says which argument becomes which.

        Raises `ConfigError` for anything that is no `DataLoader`.
        """
        dataset, found = dataset_and_options(torch_dataloader)
        own = set(by_own_names(options))
        others = {name: value for name, value in found.items() if name not in own}
        return cls(dataset, **others, **options)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled or copied, a loader is one with the same arguments that is not started."""
        recipe = self._engine.recipe()
        names = {"dataset_class", "dataset_kwargs", *self._given}
        parts = {name: value for name, value in vars(recipe).items() if name in names}
        given = {name: value for name, value in self._given.items() if name not in parts}
        return rebuilt, (type(self), given, packed(parts))
