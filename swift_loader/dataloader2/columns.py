"""Which part of an item a function gets, and where its result goes: `input_col`, `output_col`.

The rules are those of torch's `map` pipe. `input_col`: `None` takes the whole item; an index or a
key takes that field; a list or tuple of them gives the function several arguments. `output_col`:
`None` puts the result in place of the (first) input field and removes the other input fields; `-1`
appends it to a list or tuple; an index or key puts it there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["call_on_columns", "checked_output_col", "fields_of", "with_result"]


def call_on_columns(fn: Callable[..., Any], item: Any, input_col: Any) -> Any:
    """`fn` of the fields of `item` that `input_col` names."""
    if input_col is None:
        return fn(item)
    if isinstance(input_col, (list, tuple)):
        return fn(*(item[column] for column in input_col))
    return fn(item[input_col])


def fields_of(item: Any, input_col: Any) -> Any:
    """The part of `item` that `input_col` names: a list of fields where it names several."""
    if input_col is None:
        return item
    if isinstance(input_col, (list, tuple)):
        return [item[column] for column in input_col]
    return item[input_col]


def with_result(item: Any, result: Any, input_col: Any, output_col: Any) -> Any:
    """`item` with `result` in it. Lists and dicts are changed in place, tuples are made anew."""
    if input_col is None:
        return result
    fields = list(item) if isinstance(item, tuple) else item
    if output_col == -1:
        fields.append(result)
    elif output_col is not None:
        fields[output_col] = result
    elif isinstance(input_col, (list, tuple)):
        fields[input_col[0]] = result
        for column in sorted(input_col[1:], reverse=True):
            del fields[column]
    else:
        fields[input_col] = result
    return tuple(fields) if isinstance(item, tuple) else fields


def checked_output_col(input_col: Any, output_col: Any) -> Any:
    """`output_col` as one index or key, or `None`. `ValueError` where it can't be one."""
    if input_col is None and output_col is not None:
        raise ValueError("`output_col` must be None when `input_col` is None.")
    if not isinstance(output_col, (list, tuple)):
        return output_col
    if len(output_col) > 1:
        raise ValueError("`output_col` must be a single-element list or tuple")
    return output_col[0]
