"""Global lists of the script that have another order in the process that imports it for workers.

Texts have another hash in each process, so ``list({"cat", "dog"})`` has another order in each, and
so has a list that is shuffled without a seed. Labels and splits that a worker makes of such a list
are others than in the training process, and no error would say so.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from types import ModuleType
from typing import Any
from zlib import crc32

__all__ = ["Orders", "orders_here", "warn_of_other_orders"]

Orders = Mapping[str, Mapping[str, tuple[int, int]]]
"""By module and global name: a checksum of what is in it, and one of that in its order."""

_LONGEST = 1 << 16
_PLAIN = (str, bytes, int, float, bool, type(None))


def orders_here(names: Iterable[str]) -> Orders:
    """Of these global names of the script, and of the modules that lie beside it."""
    main = sys.modules["__main__"]
    found = {"__main__": _orders_of(main, names)}
    folder = os.path.join(os.path.dirname(os.path.abspath(main.__file__ or "")), "")
    for name, module in list(sys.modules.items()):
        path = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if module is main or type(path) is not str:
            continue
        if path.startswith(folder) and "-packages" not in path:
            found[name] = _orders_of(module, list(vars(module)))
    return {name: orders for name, orders in found.items() if orders}


def warn_of_other_orders(told: Orders) -> None:
    """Compare with those of this process, which has imported the script, too."""
    others = []
    for name, theirs in told.items():
        module = sys.modules.get(name)
        ours = {} if module is None else _orders_of(module, theirs)
        for each, (content, order) in theirs.items():
            if each in ours and ours[each][0] == content and ours[each][1] != order:
                others.append(each if name == "__main__" else f"{name}.{each}")
    if others:
        warnings.warn(
            f"{', '.join(others)}: in another order in the workers, which import the script anew, "
            "than in the training process. It is made of a set of texts, whose order is another "
            "one in each process, or shuffled without a seed: labels and splits that depend on it "
            "come out wrong. Sort it, give a seed, or give start_method='fork'",
            RuntimeWarning,
            stacklevel=2,
        )


def _orders_of(module: ModuleType, names: Iterable[str]) -> dict[str, tuple[int, int]]:
    known = vars(module)
    found = ((name, _order_of(known[name])) for name in names if name in known)
    return {name: order for name, order in found if order is not None and name[:2] != "__"}


def _order_of(value: Any) -> tuple[int, int] | None:
    """None: not plain, or too long to look through."""
    try:
        return _plain_order_of(value)
    except (RuntimeError, ValueError):  # a thread changes it meanwhile; a number of 5,000 digits
        return None


def _plain_order_of(value: Any) -> tuple[int, int] | None:
    kind = type(value)
    if kind is dict:
        parts = _checksums(value), _checksums(value.values()), _checksums(value.items())
        if None in parts:
            return None
        keys, values, items = (sum(part or ()) for part in parts)
        return keys ^ values << 1, items
    if kind is list or kind is tuple:
        each = _checksums(value)
        return None if each is None else (sum(each), crc32(repr(each).encode()))
    if kind.__module__ in ("numpy", "torch") and kind.__name__ in ("ndarray", "Tensor"):
        return _order_of_array(value)
    return None


def _checksums(values: Any) -> list[int] | None:
    if not 2 <= len(values) <= _LONGEST or not all(map(_is_plain, values)):
        return None
    return [crc32(repr(value).encode("utf-8", "backslashreplace")) for value in values]


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return type(value) in _PLAIN or isinstance(value, PurePath)


def _order_of_array(value: Any) -> tuple[int, int] | None:
    """Of whole numbers, such as a permutation."""
    if value.ndim != 1 or not 2 <= len(value) <= 16 * _LONGEST:
        return None
    try:
        array = value if type(value).__module__ == "numpy" else value.numpy()
    except (RuntimeError, TypeError):  # not on the CPU, or no such dtype
        return None
    if array.dtype.kind not in "iu":
        return None
    content = array.copy()
    content.sort()
    return crc32(content.tobytes()), crc32(array.tobytes())
