"""The plan of a mixture in a state: read, and checked. It runs no code of a state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from swift_loader.errors import ConfigError, StateError
from swift_loader.plan.mixture import MixturePlan

__all__ = ["read_mixture", "shown"]

_GENUINE = "give what state_dict() returned"
_NAMES = [field.name for field in fields(MixturePlan)]
_INTS = ("nb_positions", "step_positions", "nb_steps", "first_epoch", "first_position",
         "first_step")  # fmt: skip
_INT_LISTS = ("lengths", "batch_sizes", "counts", "debts", "limits")
_MOST = 2**63 - 1


def read_mixture(given: object) -> MixturePlan:
    """Raises `StateError`."""
    if not isinstance(given, Mapping) or given.keys() != set(_NAMES):
        raise StateError(f"the state is malformed: mixture does not have the fields {_NAMES}; "
                         f"{_GENUINE}")  # fmt: skip
    values: dict[str, Any] = {}
    for name in _NAMES:
        try:
            values[name] = _checked(name, given[name])
        except (TypeError, ValueError, OverflowError):
            raise StateError(
                f"the state is malformed: mixture.{name}={shown(given[name])}; {_GENUINE}"
            ) from None
    try:
        return MixturePlan(**values)
    except (ConfigError, OverflowError) as error:
        raise StateError(f"the state is malformed: {error}; {_GENUINE}") from None


def shown(value: object) -> str:
    """The beginning of its `repr`, or its type: of an integer of 5,000 digits there is none."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"<{type(value).__name__}>"
    return text if len(text) <= 100 else text[:100] + "…"


def _checked(name: str, value: Any) -> Any:
    """The value as a field has it. Raises `TypeError` or `ValueError`."""
    if name in _INTS:
        return _int(value)
    if name in _INT_LISTS:
        return tuple(_int(one) for one in _list(value))
    if name == "names":
        return tuple(_text(one) for one in _list(value))
    if name == "exhausted":
        return _text(value)
    if name == "table":
        return tuple(
            (_int(step), tuple(_number(weight) for weight in _list(weights)))
            for step, weights in map(_list, _list(value))
        )
    width = {"rounds": 3, "holes": 4}[name]

    def row(one: Any) -> tuple[int, ...]:
        numbers = tuple(_int(number) for number in _list(one))
        if len(numbers) != width:
            raise ValueError(name)
        return numbers

    if name == "holes":
        return tuple(row(one) for one in _list(value))
    return tuple(tuple(row(one) for one in _list(rows)) for rows in _list(value))


def _list(value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        raise TypeError(value)
    return value


def _int(value: Any) -> int:
    if type(value) is not int or not -_MOST <= value <= _MOST:
        raise TypeError(value)
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError(value)
    return float(value)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(value)
    return value
