"""What the user's data sets and functions hold: other data sets, and objects that do their work.

Torch's wrappers, such as `Subset`, have none of the methods that a loader looks for, and the data
sets below may have them: `set_epoch`, one that the script wants called, or a ``__getitem__`` that
is a coroutine.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import MemberDescriptorType, MethodType, ModuleType
from typing import Any

import torch
from torch.utils.data import ChainDataset, ConcatDataset, Subset

__all__ = ["calls_of", "keep_epochs_apart", "kinds_of", "listeners_of", "with_wrapped"]

_HOLDERS = ("dataset", "target_transform")
_HOLDERS_OF_MANY = ("datasets", "transforms")
_LONGEST_CHAIN = 100  # of things that hold each other; a `__getattr__` may invent them without end
_NOTHING = object()


def with_wrapped(dataset: Any) -> Iterator[Any]:
    """`dataset` itself, and all data sets that torch's wrappers of items hold, at any depth."""
    yield dataset
    if isinstance(dataset, Subset):
        yield from with_wrapped(dataset.dataset)
    elif isinstance(dataset, (ConcatDataset, ChainDataset)):
        for one in dataset.datasets:
            yield from with_wrapped(one)


def listeners_of(*things: Any, method: str = "set_epoch") -> list[Any]:
    """What has `method` among `things` and what they hold, each once.

    Looked at are the data sets of a wrapper (``dataset``, ``datasets``), ``transform`` and its
    like, the object of a bound method, and what a `functools.partial` holds. A wrapper with a
    `method` of its own answers for what it wraps; torch's own wrappers have none.
    """
    found = {id(listener): listener for _, listener in _walked(things, method)}
    return [listener for listener in found.values() if listener is not None]


def calls_of(dataset: Any, method: str) -> list[Callable[..., Any]]:
    """The bound methods that a call of `method` means: the data set's own one; where it has none,
    those of what it wraps.
    """
    own = getattr(dataset, method, None)
    if callable(own):
        return [own]
    return [getattr(one, method) for one in listeners_of(dataset, method=method)]


def kinds_of(*things: Any) -> frozenset[type]:
    """The classes of `things` and of what they hold; a class among them stands for itself."""
    held = [one for one, _ in _walked(things, "")]
    return frozenset(map(type, held)) | {one for one in things if isinstance(one, type)}


def _walked(things: Sequence[Any], method: str) -> Iterator[tuple[Any, Any]]:
    """Each of `things` and of what they hold, and what answers to `method` there."""
    seen: dict[int, Any] = {}  # all of them kept, so that no other gets an id
    waiting = [(one, 0) for one in reversed(things)]
    while waiting:
        one, depth = waiting.pop()
        if id(one) in seen or depth > _LONGEST_CHAIN or isinstance(one, (type, ModuleType)):
            continue
        seen[id(one)] = one
        listener = _listener(one, method)
        yield one, listener
        inside = _held_by(one, listener is not None)
        waiting += [(held, depth + 1) for held in reversed(inside)]


def keep_epochs_apart(*things: Any) -> None:
    """Give what has a ``set_epoch`` an epoch of its own, in place of a tensor in shared memory.

    Such a tensor tells the epoch to workers that stay (Hugging Face's streams have one). Here each
    worker is told by itself, and some are an epoch ahead of others.
    """
    for listener in listeners_of(*things):
        attributes = getattr(listener, "__dict__", {})
        for name, value in list(attributes.items()):
            if not isinstance(value, torch.Tensor) or "epoch" not in name.lower():
                continue
            if value.is_shared():  # type: ignore[no-untyped-call]
                attributes[name] = value.clone()


def _listener(one: Any, name: str) -> Any:
    """What the method `name` of `one` belongs to; None where there is none.

    What a ``__getattr__`` answers counts where it is the method of another object: some answer to
    any name.
    """
    try:
        method = getattr(one, name, None)
        if not callable(method):
            return None
        if inspect.getattr_static(one, name, _NOTHING) is not _NOTHING:
            return one
        delegated = type(method) is MethodType and method.__name__ == name
    except Exception:  # noqa: BLE001 - a __getattr__ raises what it likes
        return None
    return method.__self__ if delegated else None


def _held_by(one: Any, listens: bool) -> list[Any]:
    if isinstance(one, MethodType):
        return [one.__self__]
    if isinstance(one, partial):
        return [one.func, *one.args, *one.keywords.values()]
    if isinstance(one, (torch.nn.Sequential, torch.nn.ModuleList)):
        return list(one)
    held = [_answered(one, "transform")]
    if not listens or isinstance(one, (Subset, ConcatDataset, ChainDataset)):
        held += [_attribute(one, name) for name in _HOLDERS]
        for name in _HOLDERS_OF_MANY:
            many = _attribute(one, name)
            if isinstance(many, dict):
                held += many.values()
            elif isinstance(many, (list, tuple)):
                held += many
            else:
                held.append(many)
    return held


def _answered(one: Any, name: str) -> Any:
    try:
        return getattr(one, name, None)
    except Exception:  # noqa: BLE001 - a property or __getattr__ raises what it likes
        return None


def _attribute(one: Any, name: str) -> Any:
    """A plain attribute: a property might open a file, in a process that is forked later."""
    if isinstance(one, torch.nn.Module):
        return _answered(one, name)
    found = inspect.getattr_static(one, name, None)
    if isinstance(found, MemberDescriptorType):
        return _answered(one, name)
    return None if hasattr(type(found), "__get__") and not callable(found) else found
