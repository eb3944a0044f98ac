"""`Mixture`: several data sets, interleaved by weight. What users write, checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any, Literal, get_args

from swift_loader.errors import refuse
from swift_loader.plan.mixture_fields import Exhausted, Weights
from swift_loader.sources.blended import Blended, Ingredient, blended

__all__ = ["Mixing", "Mixture", "Source"]

_PIECES = 128  # that weights by a function are cut into
_A_DOUBLING, _DOUBLINGS = 16, 24  # where nobody says over how many steps: up to step 2^24
_MOST_SOURCES = 4096
_MOST_STEPS = 2**62


@dataclass(frozen=True)
class Source:
    """One data set of a `Mixture`.

    Parameters
    ----------
    dataset:
        A class or function that returns a data set with ``__getitem__`` and ``__len__``: every
        worker calls it with `kwargs`. Or a data set that is built already: it travels to the
        workers by pickle.
    kwargs:
        The arguments of `dataset`. None for a data set that is built already.
    weight:
        Its share, relative to the weights of the other sources. None: the number of its samples.
        Give a weight to all sources or to none.
    transform:
        ``sample -> sample``. The worker calls it with each sample of this source. The loader's own
        `transform` gets what it returns.
    collate_fn:
        Makes a batch of samples of this source, in place of the loader's; needs ``mix="batch"``.
    batch_size:
        Samples in a batch of this source, in place of the loader's, at most 2**20; needs
        ``mix="batch"``.
    tokens:
        Tokens in each sample, where all have as many: for ``stats()``. None: the `length` of a
        `Packed` that is built already, with its padding; of other data sets, unknown.
    """

    dataset: Any
    kwargs: Mapping[str, Any] | None = None
    weight: float | None = None
    transform: Callable[[Any], Any] | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    batch_size: int | None = None
    tokens: int | None = None


@dataclass(frozen=True)
class Mixing:
    """What the training process knows of a mixture: all but the data sets.

    `table`: weights by step, None where they are the sources' lengths. `batch_sizes`: 0 is the
    loader's own.
    """

    names: tuple[str, ...]
    table: tuple[tuple[int, Weights], ...] | None
    samples_per_epoch: int | None
    exhausted: Exhausted
    by_batch: bool
    batch_sizes: tuple[int, ...]
    tokens: tuple[int | None, ...]


class Mixture:
    """Several data sets as one. Their samples come interleaved, each source by its weight.

    ```python
    mix = Mixture({"web": (Web, {"root": ...}, 0.7), "code": (Code, {...}, 0.3)})
    loader = SwiftLoader(mix, batch_size=8, nb_consumer=8, shuffle=True)
    ```

    Take any 1,000 samples in a row, of all consumers together: each source has as many of them as
    its weight says, give or take two (rarely three, with many sources of like weights). All samples
    of a source come before one of them comes again. With the loader's ``shuffle=True``, each such
    round of a source has an order of its own.

    Parameters
    ----------
    sources:
        A dict of sources by name. A source is a `Source`, ``(class, kwargs, weight)``,
        ``(class, kwargs)``, ``(data set, weight)``, or a data set.
    weights:
        Weights that take the place of the sources' own. A dict by name; or a table by step, such as
        ``[(0, {"web": 0.9, "code": 0.1}), (10_000, {...})]``, in which each line holds from its
        step on; or a function ``step -> dict``. The mixture calls the function when it is built: at
        128 steps, evenly spread over the first `weight_steps`. Each answer holds up to the next
        one, and the last one for ever. A step is one batch of every consumer, counted over all
        epochs.
    weight_steps:
        Over how many steps the weights of a function change. None: the mixture asks at each of the
        first 16 steps, then at 16 steps for each doubling, up to step 2^24.
    samples_per_epoch:
        How many samples an epoch has, over all consumers. None: as many as all sources have
        together. A run is one long sequence, and an epoch is a stretch of it: the next epoch goes
        on where the last one ended.
    exhausted:
        What happens when a source has no more samples. ``"repeat"``: it begins a new round.
        ``"stop"``: the epoch ends. ``"drop"``: the other sources go on by their weights, and the
        epoch ends with the last of them, so every sample comes once.
    mix:
        ``"sample"``: a batch holds samples of several sources. ``"batch"``: a batch holds samples
        of one source. Weights then count batches, and each source may have a `batch_size` and a
        `collate_fn` of its own.
    with_source:
        Whether each sample becomes ``(sample, name of its source)``.

    Raises
    ------
    ConfigError
        An argument is wrong: which, and what to do.
    """

    def __init__(
        self,
        sources: Mapping[str, Any],
        *,
        weights: Mapping[str, float]
        | Sequence[tuple[int, Mapping[str, float]]]
        | Callable[[int], Mapping[str, float]]
        | None = None,
        weight_steps: int | None = None,
        samples_per_epoch: int | None = None,
        exhausted: Exhausted = "repeat",
        mix: Literal["sample", "batch"] = "sample",
        with_source: bool = False,
    ) -> None:
        if not isinstance(sources, Mapping) or not 0 < len(sources) <= _MOST_SOURCES:
            refuse("sources", sources, "give a dict of data sets by name, at least one")
        made = {name: _source(name, given) for name, given in sources.items()}
        if exhausted not in get_args(Exhausted):
            refuse("exhausted", exhausted, "give 'repeat', 'stop' or 'drop'")
        if mix not in ("sample", "batch"):
            refuse("mix", mix, "give 'sample' or 'batch'")
        samples_per_epoch = _count("samples_per_epoch", samples_per_epoch)
        if samples_per_epoch is not None and exhausted != "repeat":
            refuse("samples_per_epoch", samples_per_epoch, f"exhausted={exhausted!r} says when an "
                   "epoch ends; leave it out")  # fmt: skip
        for name, source in made.items():
            if mix == "sample" and (source.collate_fn or source.batch_size):
                what = "collate_fn" if source.collate_fn else "batch_size"
                refuse(f"sources[{name!r}].{what}", getattr(source, what), "a batch holds samples "
                       "of several sources: give mix='batch', or leave it out")  # fmt: skip
        table = _table(made, weights, weight_steps)
        if table is not None and len(table) > 1 and exhausted != "repeat":
            refuse("weights", "…", "weights that change by step need exhausted='repeat'")
        self._ingredients = tuple(
            Ingredient(name, one.dataset, one.kwargs, one.transform, one.collate_fn)
            for name, one in made.items()
        )
        self.with_source = with_source
        self.mixing = Mixing(
            tuple(made),
            table,
            samples_per_epoch,
            exhausted,
            mix == "batch",
            tuple(source.batch_size or 0 for source in made.values()),
            tuple(map(_tokens, made.values())),
        )

    def __call__(self) -> Blended:
        """The data set of all samples, as each worker builds it."""
        return blended(self._ingredients, self.with_source)

    @property
    def ingredients(self) -> tuple[Ingredient, ...]:
        """Its sources, as workers need them."""
        return self._ingredients

    def built(self) -> dict[str, Any]:
        """The sources that were given as data sets, by name."""
        return {one.name: one.build for one in self._ingredients if one.kwargs is None}

    def __repr__(self) -> str:
        return f"Mixture({', '.join(self.mixing.names)})"


def _source(name: Any, given: Any) -> Source:
    where = f"sources[{name!r}]"
    if not isinstance(name, str) or not name:
        refuse("sources", name, "names are texts")
    if isinstance(given, Source):
        source = given
    elif not isinstance(given, tuple):
        source = Source(given)
    elif len(given) == 3 or (len(given) == 2 and isinstance(given[1], Mapping)):
        source = Source(*given)
    elif len(given) == 2:
        source = Source(given[0], None, given[1])
    else:
        refuse(where, given, "give (class, kwargs, weight), (class, kwargs), (data set, weight), a "
               "Source, or a data set")  # fmt: skip
    if source.kwargs is not None and not isinstance(source.kwargs, Mapping):
        refuse(where, source.kwargs, "keyword arguments are a dict")
    if source.kwargs is None and isinstance(source.dataset, type):
        source = replace(source, kwargs={})
    if source.kwargs is not None and not callable(source.dataset):
        refuse(where, source.dataset, "it takes no arguments: give a class with them, or a data "
               "set without")  # fmt: skip
    if isinstance(source.dataset, Mixture):  # whose own weights would count for nothing
        refuse(where, source.dataset, "a Mixture can't be a source: give its sources here, each "
               "with its share of the whole as its weight")  # fmt: skip
    if source.weight is not None:
        _weight(where, source.weight)
    source = replace(
        source,
        batch_size=_count(f"{where}.batch_size", source.batch_size),
        tokens=_count(f"{where}.tokens", source.tokens),
    )
    for what in ("transform", "collate_fn"):
        value = getattr(source, what)
        if value is not None and not callable(value):
            refuse(f"{where}.{what}", value, "give a function")
    return source


def _count(option: str, value: Any) -> int | None:
    """A whole number of any type, as numpy's; or None. Raises `ConfigError`."""
    if value is None:
        return None
    try:
        count = index(value)
    except TypeError:
        count = 0
    if isinstance(value, bool) or count < 1:
        refuse(option, value, "give a whole number, 1 or more")
    return count


def _tokens(source: Source) -> int | None:
    """In each sample, where that is given, or the data set's class says it, as `Packed` does."""
    if source.tokens is not None or not hasattr(type(source.dataset), "tokens_per_sample"):
        return source.tokens
    found: int = source.dataset.tokens_per_sample
    return found


def _weight(where: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < 2.0**60:
        refuse(f"{where}: weight", value, "give a number, 0 or more")
    return number


def _steps_asked(weight_steps: int | None) -> list[int]:
    """The steps at which a function says the weights."""
    if weight_steps is not None:
        return sorted({weight_steps * number // _PIECES for number in range(_PIECES + 1)})
    return sorted({0, *(int(2 ** (n / _A_DOUBLING)) for n in range(_A_DOUBLING * _DOUBLINGS + 1))})


def _table(
    sources: Mapping[str, Source], weights: Any, weight_steps: int | None
) -> tuple[tuple[int, Weights], ...] | None:
    names = tuple(sources)
    weight_steps = _count("weight_steps", weight_steps)
    if callable(weights):
        weights = [(step, weights(step)) for step in _steps_asked(weight_steps)]
    elif weight_steps is not None:
        refuse("weight_steps", weight_steps, "it goes with weights that are a function")
    if weights is None:
        given = [source.weight for source in sources.values()]
        if all(weight is None for weight in given):
            return None
        missing = [name for name, weight in zip(names, given, strict=True) if weight is None]
        if missing:
            refuse("weights", "…", f"{missing} have none: give a weight to all sources, or to none")
        weights = {name: source.weight for name, source in sources.items()}
    if isinstance(weights, Mapping):
        weights = [(0, weights)]
    if not isinstance(weights, Sequence) or isinstance(weights, str) or not weights:
        refuse("weights", weights, "give a dict by name, a list of (step, dict), or a function")
    table: list[tuple[int, Weights]] = []
    for line in weights:
        try:
            step, by_name = line
        except (TypeError, ValueError):
            refuse("weights", line, "give (step, dict by name) in each line")
        if type(step) is not int or not 0 <= step < _MOST_STEPS or (table and step <= table[-1][0]):
            refuse("weights", step, "steps are ascending whole numbers, less than 2**62")
        if not isinstance(by_name, Mapping) or set(by_name) != set(names):
            refuse("weights", by_name, f"give one for each of {list(names)}")
        row = tuple(_weight(f"weights[{name!r}]", by_name[name]) for name in names)
        if not sum(row) > 0:
            refuse("weights", by_name, "at least one is more than 0")
        if not table or table[-1][1] != row:
            table.append((step, row))
    return ((0, table[0][1]), *table[1:])
