"""Finds what in a large object can't travel, and says what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any, NamedTuple

import torch

__all__ = ["Culprit", "blame", "find"]

_MAX_DEPTH = 20
_MAX_TRIED = 2000  # of the things looked at, so that an answer comes soon

_OWN = "Create it in the dataset's constructor (which runs in the worker)"
_ADVICE = {
    "lock": f"{_OWN}, or leave it out in __getstate__",
    "RLock": f"{_OWN}, or leave it out in __getstate__",
    "generator": "Pass a list, or a function that makes the generator in the worker",
    "FileIO": "Pass the path, and open it in the dataset's constructor (which runs in the worker)",
    "": f"{_OWN}, or give its class a __reduce__ that pickle takes",
}
for _name in ("BufferedReader", "BufferedWriter", "BufferedRandom", "TextIOWrapper"):
    _ADVICE[_name] = _ADVICE["FileIO"]


class Culprit(NamedTuple):
    """What can't travel: where it is, as Python writes it, the thing itself, and why not."""

    path: str
    thing: Any
    error: Exception

    def __str__(self) -> str:
        kind = type(self.thing)
        return f"{self.path} (a {kind.__module__}.{kind.__qualname__})"


def find(obj: Any, failure: Callable[[Any], Exception | None], path: str = "") -> Culprit | None:
    """The innermost thing in `obj` that can't travel by itself; None if `obj` can.

    `failure` tries one thing alone, and gives the error. `path`: what `obj` is called.
    """
    return _Search(failure).within(path, obj, 0)


def blame(
    parts: Mapping[str, Any], failure: Callable[[Any], Exception | None], error: Exception
) -> str:
    """Which part of `parts` can't travel to a worker, why, and the fix; `error` says it can't."""
    for name, part in parts.items():
        culprit = find(part, failure, name)
        if culprit is not None:
            why, advice = str(culprit.error), _ADVICE.get(type(culprit.thing).__name__)
            if isinstance(culprit.thing, torch.Tensor) and not culprit.thing.is_cpu:
                why = f"it is on {culprit.thing.device}"
                advice = "Pass a CPU tensor: workers must not touch the device"
            return f"{culprit} can't travel to a worker: {why}. {advice or _ADVICE['']}."
    return f"the dataset can't travel to a worker: {error}. {_ADVICE['']}."


class _Search:
    def __init__(self, failure: Callable[[Any], Exception | None]) -> None:
        self._failure = failure
        self._seen: set[int] = set()
        self._nb_tried = 0

    def within(self, path: str, obj: Any, depth: int) -> Culprit | None:
        if id(obj) in self._seen or self._nb_tried >= _MAX_TRIED:
            return None
        self._seen.add(id(obj))
        self._nb_tried += 1
        error = self._failure(obj)
        if error is None:
            return None
        if depth < _MAX_DEPTH and not type(obj).__module__.startswith("multiprocessing."):
            for step, child in _children(obj):
                found = self.within(path + step, child, depth + 1)
                if found is not None:
                    return found
        return Culprit(path, obj, error)


def _children(obj: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, with the step that leads there as Python writes it."""
    if isinstance(obj, Mapping):
        yield from ((f"[{key!r}]", value) for key, value in obj.items())
    elif isinstance(obj, list | tuple | set | frozenset):
        yield from ((f"[{place}]", value) for place, value in enumerate(obj))
    if isinstance(obj, partial):
        yield ".func", obj.func
        yield from ((f".args[{place}]", value) for place, value in enumerate(obj.args))
        yield from ((f".keywords[{key!r}]", value) for key, value in obj.keywords.items())
    elif isinstance(obj, MethodType):
        yield ".__self__", obj.__self__
    elif isinstance(obj, FunctionType):
        yield from _captured(obj)
    elif isinstance(obj, type) or hasattr(obj, "__dict__"):
        held = ((name, value) for name, value in vars(obj).items() if name != "__annotate_func__")
        yield from ((f".{name}", value) for name, value in held)  # (that one does not travel)


def _captured(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables that a function takes along from around it."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        if cell != CellType():  # not yet filled
            yield f" (its variable {name!r})", cell.cell_contents
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f" (its global {name!r})", function.__globals__[name]
    for place, value in enumerate(function.__defaults__ or ()):
        yield f".__defaults__[{place}]", value
