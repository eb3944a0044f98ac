"""Finds what in a large object can't be pickled, and says what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

import torch

__all__ = ["blame"]

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


def blame(
    parts: Mapping[str, Any], failure: Callable[[Any], Exception | None], error: Exception
) -> str:
    """Which part of `parts` can't travel, as `part['key'].attribute`, why, and the fix.

    Args:
        parts: what was to travel; `error` says that it didn't.
        failure: tries one thing alone; gives the error, or None if that one travels.
    """
    search = _Search(failure)
    for name, part in parts.items():
        found = search.within(name, part, 0)
        if found is not None:
            path, culprit, why = found
            kind = type(culprit)
            what = f"{path} (a {kind.__module__}.{kind.__qualname__})"
            if isinstance(culprit, torch.Tensor) and not culprit.is_cpu:
                advice = "Pass a CPU tensor: workers must not touch the device"
                return f"{what} can't travel to a worker: it is on {culprit.device}. {advice}."
            advice = _ADVICE.get(kind.__name__, _ADVICE[""])
            return f"{what} can't travel to a worker: {why}. {advice}."
    return f"the dataset can't travel to a worker: {error}. {_ADVICE['']}."


class _Search:
    def __init__(self, failure: Callable[[Any], Exception | None]) -> None:
        self._failure = failure
        self._seen: set[int] = set()
        self._nb_tried = 0

    def within(self, path: str, obj: Any, depth: int) -> tuple[str, Any, Exception] | None:
        """The innermost thing under `obj` that fails by itself; None if `obj` travels."""
        if id(obj) in self._seen or self._nb_tried >= _MAX_TRIED:
            return None
        self._seen.add(id(obj))
        self._nb_tried += 1
        error = self._failure(obj)
        if error is None:
            return None
        if depth < _MAX_DEPTH:
            for step, child in _children(obj):
                found = self.within(path + step, child, depth + 1)
                if found is not None:
                    return found
        return path, obj, error


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
        yield from ((f".{name}", value) for name, value in vars(obj).items())


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
