"""Why samples can't be put together, said so that the reader finds the sample."""

from __future__ import annotations

from collections import abc
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from swift_loader.batch.reduce import why_not_cpu

__all__ = ["Mismatch", "explain", "keys_differ", "lengths_differ"]

_SHOWN = 5  # indices named of each group; more of them hide the point
_PAD = "Pad or crop them alike in the dataset, or give a collate_fn that does"
_CONVERT = "Convert it to tensors or numbers in the dataset, or give a collate_fn that handles it"


class Mismatch(Exception):
    """Values of one field that can't be collated.

    `problem` follows "can't be collated: ". `groups`: what was found, at which places of the batch.
    """

    def __init__(self, problem: str, fix: str, groups: dict[str, list[int]] | None = None) -> None:
        super().__init__(problem)
        self._problem = problem
        self._fix = fix
        self._groups = groups or {}
        self._field = ""

    def within(self, step: str) -> None:
        """Prepend a step to the field, as Python writes it: `['image']`, `[0]`, `.mask`."""
        self._field = step + self._field

    def message(self, indices: Sequence[int] | None) -> str:
        """What to tell the user; `indices` are the samples' places in the dataset."""
        subject = f"field {self._field} of the samples" if self._field else "the samples"
        found = "; ".join(f"{what} in {_named(at, indices)}" for what, at in self._groups.items())
        problem = f"{self._problem}: {found}" if found else self._problem
        return f"{subject} can't be collated: {problem}. {self._fix}."


def _differing(problem: str, found: Iterable[str], fix: str = _PAD) -> Mismatch | None:
    """A mismatch if not all of `found`, one a sample, are the same."""
    groups: dict[str, list[int]] = {}
    for place, what in enumerate(found):
        groups.setdefault(what, []).append(place)
    return Mismatch(problem, fix, groups) if len(groups) > 1 else None


def explain(batch: Sequence[Any], error: Exception | None = None) -> Mismatch:
    """What is wrong with the values of one field; `error` came when they were collated."""
    same_type = "Return the same type in every sample, or give a collate_fn that handles both"
    mismatch = _differing("types differ", (type(each).__name__ for each in batch), same_type)
    if mismatch is not None:
        return mismatch
    first = batch[0]
    if isinstance(first, Tensor):
        return _explain_tensors(batch, error)
    if isinstance(first, np.ndarray):
        mismatch = _differing("shapes differ", (str(each.shape) for each in batch))
        return mismatch or Mismatch(f"torch has no dtype like numpy's {first.dtype}", _CONVERT)
    if error is None:
        kind = type(first)
        return Mismatch(f"{kind.__module__}.{kind.__qualname__} is no type that collates", _CONVERT)
    return Mismatch(str(error), _CONVERT)


def keys_differ(mappings: Sequence[Mapping[Any, Any]], error: Exception) -> Mismatch:
    """What is wrong with mappings of which `error` came when their values were looked up."""
    if not all(isinstance(each, abc.Mapping) for each in mappings):
        return explain(mappings, error)
    fix = "Return the same keys in every sample, or give a collate_fn"
    keys = (str(list(each)) for each in mappings)
    return _differing("keys differ", keys, fix) or explain(mappings, error)


def lengths_differ(sequences: Sequence[Sequence[Any]], error: Exception) -> Mismatch:
    """What is wrong with sequences of which `error` came when they were gone through together."""
    if not all(isinstance(each, abc.Sequence) for each in sequences):
        return explain(sequences, error)
    lengths = (f"length {len(each)}" for each in sequences)
    return _differing("lengths differ", lengths) or explain(sequences, error)


def _explain_tensors(batch: Sequence[Tensor], error: Exception | None) -> Mismatch:
    first = batch[0]
    for each in batch:
        if not each.is_cpu:
            return Mismatch(*why_not_cpu(each))
    mismatch = _differing("layouts differ", (_layout(each) for each in batch))
    if mismatch is not None:
        return mismatch
    if _layout(first) != "torch.strided":
        fix = "Return dense tensors, or give a collate_fn that puts sparse or nested ones together"
        return Mismatch(f"{_layout(first)} tensors have no common stack", fix)
    mismatch = _differing("shapes differ", (str(tuple(each.shape)) for each in batch))
    return mismatch or Mismatch(str(error), _CONVERT)


def _layout(tensor: Tensor) -> str:
    return "nested" if tensor.is_nested else str(tensor.layout)


def _named(places: list[int], indices: Sequence[int] | None) -> str:
    """ "samples 7, 8", or "places 0, 1 of the batch" where the samples' indices are not known."""
    names = places if indices is None else [_key(indices[place]) for place in places]
    word = "place" if indices is None else "sample"
    shown = ", ".join(map(str, names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")
    return f"{word}{'s' if len(names) > 1 else ''} {shown}"


def _key(index: Any) -> str:
    """An index; or what else a sampler of the user's has given."""
    return str(int(index)) if isinstance(index, (int, np.integer)) else f"{index!r:.60}"
