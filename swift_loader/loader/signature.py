"""What a loader takes and of which type its batches are, for type checkers and editors.

They read source, so this module says again what `swift_loader.loader.options` defines; a test
compares the two. It says nothing about defaults: `SIGNATURE`, which ``help()`` and IPython ask for,
is made of the definitions.

A loader is a ``SwiftLoader[Batch]``. `Batch` is what `batch_decoder` or `collate_fn` return.
Without them, and without a `transform`, it follows from the type of a sample, as torch's
``default_collate`` has it:

=======================================  ====================
a sample                                 a batch
=======================================  ====================
a tensor, an array, a number             ``Tensor``
``str``, ``bytes``                       ``list`` of them
a tuple of tensors, arrays, numbers      ``list[Tensor]``
a mapping from ``str`` to such           ``dict[str, Tensor]``
anything else                            ``Any``
=======================================  ====================
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypedDict, overload

import numpy as np
import torch
from torch import Tensor

from swift_loader.batch.fetch import OnError
from swift_loader.cache.options import Cache
from swift_loader.loader.given import given_by_name
from swift_loader.loader.names import ALIASES
from swift_loader.loader.options import definitions
from swift_loader.pipeline.elsewhere import RemoteWorkers

if TYPE_CHECKING:
    from typing import TypeAlias

    from torch.utils.data import TensorDataset
    from typing_extensions import TypeVar, Unpack

    from swift_loader.loader.engine import Engine
    from swift_loader.loader.loader import SwiftLoader

    Batch_co = TypeVar("Batch_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    Batch_co = TypeVar("Batch_co", covariant=True)

__all__ = ["SIGNATURE", "AllOptions", "Batch_co", "Changes", "Options", "SameBatches", "Typed"]

Batch = TypeVar("Batch")
Leaf = TypeVar("Leaf", Tensor, str, bytes, float)
Text = TypeVar("Text", str, bytes)
Sample = TypeVar("Sample")
Sample_co = TypeVar("Sample_co", covariant=True)


class Indexed(Protocol[Sample_co]):
    """A data set with indices."""

    def __getitem__(self, index: int, /) -> Sample_co: ...


class Named(Protocol):
    """A named tuple, which collates to one of its own kind: no ``list[Tensor]``."""

    def _asdict(self) -> dict[str, Any]: ...


class Untold:
    """A sample of no known type: nothing but `Any` is taken for it."""


if TYPE_CHECKING:
    Built: TypeAlias = Indexed[Sample] | Iterable[Sample]
    Source: TypeAlias = (
        Built[Sample] | Callable[..., Indexed[Sample]] | Callable[..., Iterable[Sample]]
    )
    Number: TypeAlias = Tensor | np.ndarray[Any, Any] | np.generic | float
    Kwargs: TypeAlias = Mapping[str, Any] | None
    Workers: TypeAlias = int | Literal["auto"]
    Collate: TypeAlias = Callable[[Any], Batch]
    Decoder: TypeAlias = Callable[[bytes], Batch]
    Transform: TypeAlias = Callable[[Any], Any] | None


class Options(TypedDict, total=False):
    """Options that are given by name, and other names of options."""

    seed: int | None
    seed_number: int | None
    seed_numer: int | None
    data_queue_size: int | None
    message_queue_size: int | None
    max_buffer_size: int | None
    logger: str | os.PathLike[str] | Mapping[str, Any] | None
    batch_encoder: Callable[[Any], bytes] | None
    nearby_shuffle: int | None
    benchmark: bool
    benchmark_file: str | os.PathLike[str] | None
    validate: bool
    multithread: bool
    max_nb_batch_on_device: int
    device_buffers: Literal["fresh", "static"]
    tail: Literal["balanced", "drop", "pad"]
    in_order: bool
    timeout: float | None
    on_timeout: Literal["raise", "restart"]
    worker_init_fn: Callable[[int], None] | None
    threads_per_worker: int
    on_error: OnError
    max_bad_samples: int | None
    max_worker_restarts: int
    max_deaths_per_batch: int
    worker_affinity: Sequence[int] | Sequence[Sequence[int]] | None
    metrics: Any
    progress: bool
    trace_file: str | os.PathLike[str] | None
    sampler: Iterable[Any] | None
    batch_sampler: Iterable[Sequence[Any]] | None
    remote_workers: str | RemoteWorkers | Sequence[str | RemoteWorkers] | None
    remote_key: str | os.PathLike[str] | Literal[False] | None
    remote_timeout: float
    equal_steps: bool
    prefetch_epochs: int
    stream_split: Literal["auto", "workers", "ranks"]
    batch_tokens: int | None
    lengths: Any
    token_cost: Literal["padded", "sum"]
    start_method: Literal["auto", "main", "fresh", "fork", "thread"]
    cache: Cache | int | str | None
    # Torch's names, with torch's meaning.
    num_workers: int | None
    drop_last: bool | None
    prefetch_factor: int | None
    multiprocessing_context: Any
    generator: torch.Generator | None
    pin_memory: bool
    pin_memory_device: str
    persistent_workers: bool | None


class AllOptions(Options, total=False):
    """Every option but the data set."""

    batch_size: int | None
    nb_consumer: int
    worker_per_consumer: Workers
    shuffle: bool
    collate_fn: Collate[Any] | None
    batch_decoder: Decoder[Any] | None
    transform: Transform


class SameBatches(Options, total=False):
    """What `SwiftLoader.with_options` takes and does not change the type of a batch."""

    batch_size: int
    nb_consumer: int
    worker_per_consumer: Workers
    shuffle: bool
    dataset_kwargs: Kwargs


class Changes(AllOptions, total=False):
    """What `SwiftLoader.with_options` takes."""

    dataset_class: Callable[..., Any] | Any
    dataset_kwargs: Kwargs
    dataset: Any


_BY_PLACE = (
    "dataset_class", "dataset_kwargs", "batch_size", "nb_consumer", "worker_per_consumer", "shuffle"
)  # fmt: skip


def _signature() -> Signature:
    by_name = {
        one.name: Parameter(
            one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=one.type
        )
        for one in definitions()
    }
    by_place = [
        by_name.pop(name).replace(kind=Parameter.POSITIONAL_OR_KEYWORD) for name in _BY_PLACE
    ]
    others = [
        Parameter(alias.name, Parameter.KEYWORD_ONLY, default=None, annotation=alias.type)
        for alias in ALIASES.values()
    ]
    itself = Parameter("self", Parameter.POSITIONAL_ONLY)
    return Signature([itself, *by_place, *by_name.values(), *others])


SIGNATURE = _signature()


class Typed(Generic[Batch_co]):
    """The arguments of a loader; `_set_up` gets those that were given, by name.

    The overloads differ in the type of a batch, and stand in the order in which they are tried.
    """

    # fmt: off
    # `self` is a subclass of this class, which mypy is told to accept (in pyproject.toml).
    @overload
    def __init__(
        self: SwiftLoader[Batch], dataset: Source[Any], dataset_kwargs: Kwargs = None,
        batch_size: int | None = 1, nb_consumer: int = 1, worker_per_consumer: Workers = 1,
        shuffle: bool = False, *, batch_decoder: Decoder[Batch],
        collate_fn: Collate[Any] | None = None, transform: Transform = None,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: SwiftLoader[Batch], dataset: Source[Any], dataset_kwargs: Kwargs = None,
        batch_size: int | None = 1, nb_consumer: int = 1, worker_per_consumer: Workers = 1,
        shuffle: bool = False, *, collate_fn: Collate[Batch], transform: Transform = None,
        **options: Unpack[Options],
    ) -> None: ...
    @overload  # torch does not say what its `__getitem__` returns
    def __init__(
        self: SwiftLoader[list[Tensor]], dataset: TensorDataset | Callable[..., TensorDataset],
        dataset_kwargs: Kwargs = None, batch_size: int = 1, nb_consumer: int = 1,
        worker_per_consumer: Workers = 1, shuffle: bool = False, *, collate_fn: None = None,
        transform: None = None, **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: SwiftLoader[Any], dataset: Source[Untold], dataset_kwargs: Kwargs = None,
        batch_size: int | None = 1, nb_consumer: int = 1, worker_per_consumer: Workers = 1,
        shuffle: bool = False, *, collate_fn: None = None, transform: None = None,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: SwiftLoader[Leaf], dataset: Source[Leaf], dataset_kwargs: Kwargs = None,
        *, batch_size: None, nb_consumer: int = 1, worker_per_consumer: Workers = 1,
        shuffle: bool = False, collate_fn: None = None, transform: None = None,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: SwiftLoader[Tensor], dataset: Source[Number], dataset_kwargs: Kwargs = None,
        batch_size: int = 1, nb_consumer: int = 1, worker_per_consumer: Workers = 1,
        shuffle: bool = False, *, collate_fn: None = None, transform: None = None,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: SwiftLoader[list[Text]], dataset: Source[Text], dataset_kwargs: Kwargs = None,
        batch_size: int = 1, nb_consumer: int = 1, worker_per_consumer: Workers = 1,
        shuffle: bool = False, *, collate_fn: None = None, transform: None = None,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: SwiftLoader[Any], dataset: Source[Named], dataset_kwargs: Kwargs = None,
        batch_size: int = 1, nb_consumer: int = 1, worker_per_consumer: Workers = 1,
        shuffle: bool = False, *, collate_fn: None = None, transform: None = None,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: SwiftLoader[list[Tensor]], dataset: Source[tuple[Number, ...]],
        dataset_kwargs: Kwargs = None, batch_size: int = 1, nb_consumer: int = 1,
        worker_per_consumer: Workers = 1, shuffle: bool = False, *, collate_fn: None = None,
        transform: None = None, **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: SwiftLoader[dict[str, Tensor]], dataset: Source[Mapping[str, Number]],
        dataset_kwargs: Kwargs = None, batch_size: int = 1, nb_consumer: int = 1,
        worker_per_consumer: Workers = 1, shuffle: bool = False, *, collate_fn: None = None,
        transform: None = None, **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: SwiftLoader[Any], dataset_class: Callable[..., Any] | Any = None,
        dataset_kwargs: Kwargs = None, batch_size: int | None = 1, nb_consumer: int = 1,
        worker_per_consumer: Workers = 1, shuffle: bool = False, *, dataset: Any = None,
        collate_fn: Collate[Any] | None = None, batch_decoder: Decoder[Any] | None = None,
        transform: Transform = None, **options: Unpack[Options],
    ) -> None: ...
    # fmt: on
    def __init__(self, *args: Any, **options: Any) -> None:
        """See `SwiftLoader`."""
        self._set_up(given_by_name(SIGNATURE, self, args, options))

    __init__.__signature__ = SIGNATURE  # type: ignore[attr-defined]

    def _set_up(
        self, given: dict[str, Any], like: Engine | None = None, out_of_it: bool = False
    ) -> None:
        raise NotImplementedError
