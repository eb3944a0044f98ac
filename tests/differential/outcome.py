"""What a loader did with an epoch, in a form that can be compared: batches and errors."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

MOST_BATCHES = 200  # a loader that never ends fails the comparison, and not the test run


@dataclasses.dataclass(frozen=True)
class Raised:
    """An error in a batch's place: its class, and its arguments as text."""

    kind: type[BaseException]
    words: tuple[str, ...] = dataclasses.field(compare=False, default=())


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came, in order: frozen batches, and errors in the place of some."""

    batches: tuple[Any, ...]
    length: int | None = None

    @property
    def multiset(self) -> Counter[Any]:
        """The batches without their order."""
        return Counter(self.batches)


def outcome(loader: Any, most: int = MOST_BATCHES) -> Outcome:
    """Go through one epoch, or its first `most` batches. An error does not end it: as with torch's
    loader, the batches after it are asked for.
    """
    found: list[Any] = []
    length = _length(loader)
    batches = iter(loader)
    while len(found) < most:
        try:
            found.append(frozen(next(batches)))
        except StopIteration:
            break
        except Exception as error:  # noqa: BLE001 - that is what is compared
            found.append(raised(error))
    return Outcome(tuple(found), length)


def raised(error: BaseException) -> Raised:
    """The error, to be compared by its class."""
    return Raised(type(error), tuple(map(str, error.args)))


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def frozen(value: Any) -> Any:
    """`value` with all that must be equal: types, dtypes, shapes, layouts and contents."""
    kind = type(value).__name__
    if isinstance(value, torch.Tensor):
        plain = value.detach()
        layout = str(plain.layout)
        if plain.layout is not torch.strided:
            plain = plain.to_dense()
        contents = plain.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return kind, str(plain.dtype), tuple(plain.shape), layout, str(value.device), contents
    if isinstance(value, np.ndarray):
        return kind, value.dtype.str, value.shape, repr(value.tolist())
    if isinstance(value, Mapping):
        return kind, tuple((key, frozen(value[key])) for key in value)
    if isinstance(value, (list, tuple)):
        return kind, tuple(frozen(one) for one in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return kind, tuple((f.name, frozen(getattr(value, f.name))) for f in fields)
    return kind, repr(value)
