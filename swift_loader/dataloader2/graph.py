"""Questions to a graph of pipes, and changes of it. What torch's `traverse_dps` finds is the graph.

A pipe is *upstream* of another if the other gets items from it. A graph is named by its last pipe.
"""

from __future__ import annotations

import inspect
import pickle
import warnings
from collections.abc import Iterable
from typing import Any, TypeVar

import dill
from torch.utils.data import IterDataPipe, MapDataPipe
from torch.utils.data.datapipes._hook_iterator import hook_iterator
from torch.utils.data.datapipes.datapipe import _DataPipeSerializationWrapper
from torch.utils.data.graph import DataPipe, DataPipeGraph, traverse_dps
from torch.utils.data.graph_settings import get_all_graph_pipes

from swift_loader.dataloader2.random import SeedGenerator

__all__ = [
    "DataPipe",
    "DataPipeGraph",
    "answer_torch_at_once",
    "clone",
    "deserialize_datapipe",
    "find_dps",
    "is_dispatcher",
    "is_sharding",
    "list_dps",
    "remove_dp",
    "replace_dp",
    "serialize_datapipe",
    "set_datapipes_seed",
    "set_graph_random_seed",
    "traverse_dps",
    "with_single_hooks",
]

T = TypeVar("T")

_HOOKS_FILE = hook_iterator.__code__.co_filename


def list_dps(
    graph: DataPipeGraph, exclude_dps: DataPipe | Iterable[DataPipe] | None = None
) -> list[DataPipe]:
    """Every pipe of `graph` once, the last one first; without `exclude_dps` and what feeds them."""
    ends: Iterable[DataPipe] = ()
    if isinstance(exclude_dps, (IterDataPipe, MapDataPipe)):
        ends = (exclude_dps,)
    elif exclude_dps is not None:
        ends = exclude_dps
    excluded = {id(dp) for end in ends for dp in get_all_graph_pipes(traverse_dps(end))}
    return [dp for dp in get_all_graph_pipes(graph) if id(dp) not in excluded]


def find_dps(graph: DataPipeGraph, dp_type: type[Any]) -> list[DataPipe]:
    """The pipes of `graph` whose type is `dp_type` itself, each once."""
    return [dp for dp in list_dps(graph) if type(dp) is dp_type]


def is_sharding(dp: DataPipe) -> bool:
    """Does `dp` cut what it passes on among workers or ranks? Also for users' own such pipes."""
    return inspect.ismethod(getattr(dp, "apply_sharding", None))


# Also that of torchdata, which holds the functional name where both packages are there.
_DISPATCHER_NAMES = {
    "ShardingRoundRobinDispatcher",
    "ShardingRoundRobinDispatcherIterDataPipe",
}


def is_dispatcher(dp: DataPipe) -> bool:
    """Is `dp` a `sharding_round_robin_dispatch`?"""
    return type(dp).__name__ in _DISPATCHER_NAMES


def replace_dp(
    graph: DataPipeGraph, old_datapipe: DataPipe, new_datapipe: DataPipe
) -> DataPipeGraph:
    """The graph in which `new_datapipe` stands where `old_datapipe` stood; changed in place.

    `new_datapipe` brings its own upstream part, which may contain `old_datapipe`. A graph without
    `old_datapipe` stays as it is.
    """
    (last,) = (dp for dp, _ in graph.values())
    if last is old_datapipe:
        return traverse_dps(new_datapipe)
    behind_new = {id(dp) for dp in list_dps(traverse_dps(new_datapipe))}
    for dp in list_dps(graph):
        if id(dp) not in behind_new:
            _swap_attributes(dp, old_datapipe, new_datapipe)
    return traverse_dps(last)


def remove_dp(graph: DataPipeGraph, datapipe: DataPipe) -> DataPipeGraph:
    """The graph without `datapipe`, whose one input takes its place; changed in place.

    `RuntimeError` where it has no input or several.
    """
    inputs = [dp for dp, _ in traverse_dps(datapipe)[id(datapipe)][1].values()]
    if len(inputs) != 1:
        raise RuntimeError(
            f"Can't remove {datapipe!r} from the graph: it has {len(inputs)} inputs, and only a "
            "pipe with one can be left out."
        )
    return replace_dp(graph, datapipe, inputs[0])


def _swap_attributes(holder: object, old: DataPipe, new: DataPipe) -> None:
    """Put `new` for `old` in the attributes of `holder`, also inside collections and wrappers."""
    attributes = vars(holder)
    for name, value in list(attributes.items()):
        swapped = _swapped(value, old, new)
        if swapped is not value:
            attributes[name] = swapped


def _swapped(value: Any, old: DataPipe, new: DataPipe) -> Any:
    if value is old:
        return new
    if isinstance(value, _DataPipeSerializationWrapper):
        _swap_attributes(value, old, new)
        return value
    if type(value) in (list, tuple, set, frozenset):
        members = [_swapped(member, old, new) for member in value]
        changed = any(a is not b for a, b in zip(members, value, strict=True))
        return type(value)(members) if changed else value
    if type(value) is dict:
        pairs = [(_swapped(k, old, new), _swapped(v, old, new)) for k, v in value.items()]
        same = all(a is b and c is d for (a, c), (b, d) in zip(pairs, value.items(), strict=True))
        return value if same else dict(pairs)
    return value


def set_datapipes_seed(
    datapipes: Iterable[DataPipe], seed_generator: SeedGenerator, distributed_shared: bool
) -> None:
    """Call `set_seed` of those pipes that have it, each with the next seed.

    `distributed_shared`: with seeds that are the same in all workers and ranks, else with those of
    this one.
    """
    draw = (
        seed_generator.generate_shared_seed if distributed_shared else seed_generator.generate_seed
    )
    for dp in datapipes:
        if inspect.ismethod(getattr(dp, "set_seed", None)):
            dp.set_seed(draw())


def set_graph_random_seed(datapipe: DataPipe, seed_generator: SeedGenerator) -> DataPipe:
    """Seed all random pipes of a graph for one epoch; returns `datapipe`.

    Those upstream of a sharding pipe get shared seeds: all shards must cut the same order. The
    others get seeds of this worker and rank.
    """
    graph = traverse_dps(datapipe)
    before = _without_repeats(
        upstream
        for dp in list_dps(graph)
        if is_sharding(dp) or is_dispatcher(dp)
        for upstream in list_dps(traverse_dps(dp))
    )
    set_datapipes_seed(before, seed_generator, distributed_shared=True)
    after = [dp for dp in list_dps(graph) if not any(dp is other for other in before)]
    set_datapipes_seed(after, seed_generator, distributed_shared=False)
    return datapipe


def _without_repeats(datapipes: Iterable[DataPipe]) -> list[DataPipe]:
    return list({id(dp): dp for dp in datapipes}.values())


def serialize_datapipe(datapipe: DataPipe) -> bytes:
    """The graph as bytes: by pickle, or where that can't do it (lambdas, local classes), by dill.

    Classes of `__main__` go by name in either case. Raises what dill raises, after pickle has
    failed.
    """
    return _dumps(datapipe)


def deserialize_datapipe(serialized_state: bytes) -> DataPipe:
    """The inverse of `serialize_datapipe`."""
    datapipe: DataPipe = dill.loads(serialized_state)
    return with_single_hooks(datapipe)


def _dumps(obj: Any) -> bytes:
    for dumps in (pickle.dumps, _dill_by_name):
        try:
            return dumps(obj)
        except Exception:  # noqa: BLE001, S112 anything can go wrong in users' objects; the next way tells
            continue
    by_value: bytes = dill.dumps(obj)
    return by_value


def _dill_by_name(obj: Any) -> bytes:
    with warnings.catch_warnings():
        # It warns of every class of `__main__`, which it then finds.
        warnings.simplefilter("ignore", dill.PicklingWarning)
        by_name: bytes = dill.dumps(obj, byref=True)
    return by_name


def with_single_hooks(datapipe: DataPipe) -> DataPipe:
    """Mend pipe classes that came by value (from a script, a notebook, a function).

    Torch wraps `__iter__` and `__next__` when a pipe class is made. One that is made again from its
    pickle gets a second wrapper round the first, and its iterators declare each other invalid.
    """
    for dp in list_dps(traverse_dps(datapipe)):
        for cls in type(dp).__mro__:
            for name in ("__iter__", "__next__"):
                method: Any = vars(cls).get(name)
                while _is_hook(method) and _is_hook(method.__wrapped__):
                    method = method.__wrapped__
                    setattr(cls, name, method)
    return datapipe


def answer_torch_at_once(datapipe: DataPipe) -> None:
    """Say of each pipe whether it is the branch of a fork, which torch asks before every item.

    Of a pipe that doesn't say, it finds out by `IterDataPipe.__getattr__` and an exception: half of
    what a worker spends on an item that costs nothing.
    """
    for dp in list_dps(traverse_dps(datapipe)):
        if isinstance(dp, IterDataPipe) and not hasattr(dp, "_is_child_datapipe"):
            vars(dp)["_is_child_datapipe"] = False


def _is_hook(method: Any) -> bool:
    code = getattr(method, "__code__", None)
    return code is not None and code.co_filename == _HOOKS_FILE


def clone(obj: T) -> T:
    """A deep copy by way of `serialize_datapipe`, of anything."""
    copied: T = dill.loads(_dumps(obj))
    if isinstance(copied, (IterDataPipe, MapDataPipe)):
        with_single_hooks(copied)
    return copied
