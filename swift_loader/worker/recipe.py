"""What a worker is told at its birth of the user's things; where it stands is its `Place`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from typing import Any, NamedTuple

from torch.utils.data import IterableDataset

from swift_loader.batch.fetch import OnError
from swift_loader.batch.wrapped import listeners_of
from swift_loader.cache.naming import StoreName
from swift_loader.errors import refuse
from swift_loader.sources.blended import Blended

__all__ = [
    *("UNSIZED", "Recipe", "Size", "build_dataset", "forget_for_forks", "given", "keep_for_forks"),
    *("length_of", "length_of_stream", "lengths_of_sources", "recipe_of"),
]

UNSIZED = 2**62  # the length of a dataset that has none, where a sampler gives its keys
_MAX_LENGTH = 2**62


@dataclass(frozen=True)
class Recipe:
    """All of the user's that a worker needs; serialized once, the same for every worker."""

    dataset_class: Callable[..., Any]
    dataset_kwargs: dict[str, Any]
    collate_fn: Callable[[list[Any]], Any] | None
    batch_encoder: Callable[[Any], bytes] | None
    worker_init_fn: Callable[[int], None] | None
    on_error: OnError
    threads_per_worker: int
    auto_collation: bool = True  # False: a batch is a single sample
    transform: Callable[[Any], Any] | None = None
    by_shards: bool = False  # the dataset is `Shards`, and the plan says who reads which
    cache: StoreName | None = None
    by_sampler: bool = False  # the keys are the user's: the dataset need not tell its length


class Size(NamedTuple):
    """Of a data set: its length, None for a stream; and of a mixture, those of its sources."""

    nb_samples: int | None
    of_sources: tuple[int, ...] = ()


_inherited: dict[int, Recipe] = {}


def keep_for_forks(recipe: Recipe) -> dict[str, Any]:
    """Keep `recipe` for processes that are forked from this one; what is shipped instead."""
    _inherited[id(recipe)] = recipe
    return {"inherited": id(recipe)}


def forget_for_forks(recipe: Recipe) -> None:
    """The opposite of `keep_for_forks`."""
    _inherited.pop(id(recipe), None)


def recipe_of(parts: dict[str, Any]) -> Recipe:
    """The recipe whose parts were shipped."""
    if "inherited" in parts:
        return _inherited[parts["inherited"]]
    return Recipe(**parts)


def build_dataset(recipe: Recipe) -> tuple[Any, int | None]:
    """The dataset and its length, None for a stream.

    `UNSIZED` where it has none and needs none, as the keys are a sampler's.

    Raises what the constructor or `len` raises, `TypeError` for what is no dataset.
    """
    dataset = recipe.dataset_class(**recipe.dataset_kwargs)
    length = length_of(recipe, dataset)
    if recipe.cache is not None and recipe.cache.samples:
        _check_keepable(dataset, length)
    return dataset, length


def _check_keepable(dataset: Any, length: int | None) -> None:
    """Raises `ConfigError` where it makes no sense to keep what the data set gives."""
    if length is None:
        refuse("cache", type(dataset).__name__, "it is a stream, whose items have no numbers: give "
               "Cache(..., samples=False), and ask swift_loader.cache.current() in it")  # fmt: skip
    for one in listeners_of(dataset):
        refuse("cache", type(one).__name__, "it has set_epoch, so its samples differ from "
               "epoch to epoch, and can't be kept: do that in transform=, which may have set_epoch "
               "too, or give Cache(..., samples=False)")  # fmt: skip


def length_of(recipe: Recipe, dataset: Any) -> int | None:
    """The number of samples; None for a stream, `UNSIZED` where nobody needs it."""
    by_index = hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")
    if by_index and not isinstance(dataset, IterableDataset):
        if hasattr(dataset, "__len__"):
            return _length(dataset)
        if recipe.by_sampler:
            return UNSIZED
    if not hasattr(dataset, "__iter__"):
        raise TypeError(
            f"a {type(dataset).__name__} is no dataset: it needs __getitem__ and __len__, or "
            "__iter__ for a stream"
        )
    return None


def lengths_of_sources(dataset: Any) -> tuple[int, ...]:
    """Of a mixture: how many samples each of its sources has. Of anything else: none."""
    return tuple(dataset.lengths_of_sources) if isinstance(dataset, Blended) else ()


def length_of_stream(dataset: Any) -> int:
    """What a stream says that it has, over all workers. Raises `TypeError` if it says nothing."""
    if not hasattr(dataset, "__len__"):
        raise TypeError(f"a {type(dataset).__name__} is a stream without __len__, so its loader "
                        "has none")  # fmt: skip
    return _length(dataset)


def _length(dataset: Any) -> int:
    """`len(dataset)`. Raises `ConfigError` for what is no length, and what ``__len__`` raises."""
    try:
        said = type(dataset).__len__(dataset)
    except AttributeError:  # an attribute of the object alone
        said = dataset.__len__()
    try:
        length = index(said)
    except TypeError:
        length = -1
    if not 0 <= length <= _MAX_LENGTH:
        refuse(f"{type(dataset).__name__}.__len__()", said, "give a whole number of samples, in "
               f"[0, {_MAX_LENGTH}]")  # fmt: skip
    return length


def given(dataset: Any) -> Any:
    """The `dataset_class` of a dataset that exists already."""
    return dataset
