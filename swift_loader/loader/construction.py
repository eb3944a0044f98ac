"""How a loader is made: by its arguments, of a data set or a `DataLoader`, and as a copy."""

from __future__ import annotations

from inspect import Parameter
from typing import TYPE_CHECKING, Any, cast, overload

from torch.utils.data import DataLoader

from swift_loader.errors import refuse
from swift_loader.loader.copying import packed, rebuilt
from swift_loader.loader.engine import Engine
from swift_loader.loader.from_torch import dataset_and_options
from swift_loader.loader.given import given_by_name, refuse_unknown
from swift_loader.loader.names import by_own_names
from swift_loader.loader.signature import (
    SIGNATURE,
    AllOptions,
    Batch_co,
    Changes,
    Options,
    SameBatches,
    Typed,
)
from swift_loader.loader.torch_attributes import Dataset
from swift_loader.worker.recipe import given

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor
    from typing_extensions import Unpack

    from swift_loader.loader.loader import SwiftLoader
    from swift_loader.loader.signature import (
        Batch,
        Built,
        Collate,
        Decoder,
        Number,
        Transform,
        Untold,
        Workers,
    )

__all__ = ["Construction"]

_OF_DATASET = SIGNATURE.replace(
    parameters=[
        Parameter("cls", Parameter.POSITIONAL_ONLY),
        Parameter("dataset", Parameter.POSITIONAL_OR_KEYWORD),
        *(
            parameter
            for name, parameter in SIGNATURE.parameters.items()
            if name not in ("self", "dataset", "dataset_class", "dataset_kwargs")
        ),
    ]
)


class Construction(Typed[Batch_co]):
    """Other ways to a loader than its arguments."""

    _given: dict[str, Any]  # those that are not large
    _engine: Engine
    _dataset: Dataset

    # fmt: off
    @overload
    @classmethod
    def from_dataset(
        cls, dataset: Built[Any], batch_size: int | None = 1, nb_consumer: int = 1,
        worker_per_consumer: Workers = 1, shuffle: bool = False, *, collate_fn: Collate[Batch],
        transform: Transform = None, **options: Unpack[Options],
    ) -> SwiftLoader[Batch]: ...
    @overload
    @classmethod
    def from_dataset(
        cls, dataset: Built[Untold], batch_size: int | None = 1, nb_consumer: int = 1,
        worker_per_consumer: Workers = 1, shuffle: bool = False, *, collate_fn: None = None,
        transform: None = None, **options: Unpack[Options],
    ) -> SwiftLoader[Any]: ...
    @overload
    @classmethod
    def from_dataset(
        cls, dataset: Built[Number], batch_size: int = 1, nb_consumer: int = 1,
        worker_per_consumer: Workers = 1, shuffle: bool = False, *, collate_fn: None = None,
        transform: None = None, **options: Unpack[Options],
    ) -> SwiftLoader[Tensor]: ...
    @overload
    @classmethod
    def from_dataset(
        cls, dataset: Built[Mapping[str, Number]], batch_size: int = 1, nb_consumer: int = 1,
        worker_per_consumer: Workers = 1, shuffle: bool = False, *, collate_fn: None = None,
        transform: None = None, **options: Unpack[Options],
    ) -> SwiftLoader[dict[str, Tensor]]: ...
    @overload
    @classmethod
    def from_dataset(
        cls, dataset: Any, batch_size: int | None = 1, nb_consumer: int = 1,
        worker_per_consumer: Workers = 1, shuffle: bool = False, *,
        collate_fn: Collate[Any] | None = None, batch_decoder: Decoder[Any] | None = None,
        transform: Transform = None, **options: Unpack[Options],
    ) -> SwiftLoader[Any]: ...
    # fmt: on
    @classmethod
    def from_dataset(cls, *args: Any, **options: Any) -> Any:
        """A loader of a data set that is built already, and travels to the workers by pickle.

        ``SwiftLoader(dataset, batch_size=…)`` does the same. The other arguments are those of the
        class, from `batch_size` on.

        Raises `ConfigError` for a class.
        """
        arguments = given_by_name(_OF_DATASET, cls, args, options)
        if isinstance(arguments["dataset"], type):
            refuse(
                "dataset",
                arguments["dataset"],
                "it is a class: SwiftLoader(...) takes it, with its arguments",
            )
        return cls(**arguments)

    from_dataset.__func__.__signature__ = _OF_DATASET  # type: ignore[attr-defined]

    @classmethod
    def from_dataloader(
        cls, torch_dataloader: DataLoader[Any], **options: Unpack[AllOptions]
    ) -> SwiftLoader[Any]:
        """A loader with the data set and the arguments of a `DataLoader` of torch.

        The batches are the same, except that ``shuffle=True`` gives this loader's own order. A
        sampler that you gave the `DataLoader` keeps its order, except for a `RandomSampler` of all
        samples, which is what ``shuffle=True`` makes of itself. `options` are those of the class;
        they override the `DataLoader`'s. `swift_loader.loader.from_torch` says which argument
        becomes which.

        Raises `ConfigError` for anything that is no `DataLoader`.
        """
        dataset, found = dataset_and_options(torch_dataloader)
        own = set(by_own_names(options))
        others = {name: value for name, value in found.items() if name not in own}
        return cls(dataset, **others, **options)

    @overload
    def with_options(self, **changes: Unpack[SameBatches]) -> SwiftLoader[Batch_co]: ...
    @overload
    def with_options(self, **changes: Unpack[Changes]) -> SwiftLoader[Any]: ...
    def with_options(self, **changes: Any) -> SwiftLoader[Any]:
        """Another loader, not started, with the arguments of this one, except for `changes`.

        For a second loader beside this one, such as that of validation:

        ```python
        val = train.with_options(dataset_kwargs={"train": False}, shuffle=False)
        ```

        The workers of both loaders descend from one process, which has imported torch and the
        script for the first loader. So the second one starts without waiting for that. If `changes`
        leave alone the data set and the functions that workers call, the workers of both loaders
        read one copy of them.

        The two are independent: each has workers, epochs and a state of its own, and you close
        each. To change the data set, give `dataset`; or `dataset_class`, `dataset_kwargs`, or both.

        Raises `ConfigError` as the class does, `ClosedError` after `close`.
        """
        engine = self._engine
        engine.check_open()
        refuse_unknown(changes, SIGNATURE.parameters)
        changed = by_own_names(changes)
        kept = {
            name: self._given[name]
            for own, (name, _) in by_own_names(self._given).items()
            if own not in changed
        }
        out_of_it = not self._dataset.is_in_hands
        if "dataset_class" not in changed:
            recipe = engine.recipe()
            if recipe.dataset_class is given:
                kept["dataset"] = self._dataset.get()
            else:
                kept["dataset_class"] = recipe.dataset_class
                kept["dataset_kwargs"] = recipe.dataset_kwargs
        same_data = changed.keys().isdisjoint({"dataset_class", "dataset_kwargs"})
        other = type(self).__new__(type(self))
        other._set_up({**kept, **changes}, engine if same_data else None, out_of_it)
        return cast("SwiftLoader[Any]", other)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled or copied, a loader is one with the same arguments that is not started."""
        recipe = self._engine.recipe()
        names = {"dataset_class", "dataset_kwargs", *self._given}
        parts = {name: value for name, value in vars(recipe).items() if name in names}
        own = self._dataset.own()
        if own is not None:  # as it is now
            parts["dataset_kwargs"] = {"dataset": own}
        given = {name: value for name, value in self._given.items() if name not in parts}
        return rebuilt, (type(self), given, packed(parts))
