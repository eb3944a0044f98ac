"""Plain data to JSON's types and back: for states that are saved, and whose loading runs no code.

======================================  ==========================================================
what                                    as
======================================  ==========================================================
None, bool, int, str, finite float,     themselves
list, dict with keys that are strings
float that is infinite or not a number  ``{"$float": "inf"}``
tuple, set, frozenset                   ``{"$tuple": [...]}`` and so on; sets in any order
collections.deque                       ``{"$deque": [...], "most": maxlen}``
other dict, OrderedDict                 ``{"$dict": [[key, value], ...]}``, ``{"$ordered": ...}``
bytes, bytearray                        ``{"$bytes": base64}``, ``{"$bytearray": base64}``
numpy array                             ``{"$array": base64, "dtype": "<f4", "shape": [...]}``
numpy scalar                            ``{"$number": base64, "dtype": "<f4"}``
torch.Tensor                            ``{"$tensor": base64, "dtype": "int64", "shape": [...]}``
======================================  ==========================================================

Subclasses of these are other types: none of them travels.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swift_loader.batch.reduce import DTYPE_NAMES
from swift_loader.errors import StateError

__all__ = ["from_plain", "to_plain"]

_DEEPEST = 100
_KINDS = "biufcSUmM"  # of numpy's data types: those that hold numbers or text
_DTYPE = re.compile(rf"[<>|][{_KINDS}]\d+(\[\d*\w+\])?")
_TORCH_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


def to_plain(value: Any, field: str) -> Any:
    """`value` in JSON's types. Raises `StateError`, which names the part of `field` that can't be.

    Copies what is mutable: `value` may change afterwards.
    """
    return _to_plain(value, field, 0)


def from_plain(plain: Any, field: str) -> Any:
    """What `to_plain` was given. Raises `StateError` for anything that it did not return."""
    return _from_plain(plain, field, 0)


def _to_plain(value: Any, field: str, depth: int) -> Any:
    _check_depth(field, depth)
    kind = type(value)
    if value is None or kind is bool or kind is int or kind is str:
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind is list:
        return _items_to_plain(value, field, depth)
    if kind is dict and all(type(key) is str and key[:1] != "$" for key in value):
        return {k: _to_plain(v, f"{field}[{k!r}]", depth + 1) for k, v in value.items()}
    if kind is dict or kind is OrderedDict:
        pairs = [
            [
                _to_plain(k, f"a key of {field}", depth + 1),
                _to_plain(v, f"{field}[{k!r}]", depth + 1),
            ]
            for k, v in value.items()
        ]
        return {"$dict" if kind is dict else "$ordered": pairs}
    if kind in (tuple, set, frozenset):
        return {f"${kind.__name__}": _items_to_plain(value, field, depth)}
    if kind is deque:
        return {"$deque": _items_to_plain(value, field, depth), "most": value.maxlen}
    if kind is bytes or kind is bytearray:
        return {f"${kind.__name__}": _text(value)}
    if isinstance(value, np.generic) and value.dtype.kind in _KINDS:
        return {"$number": _text(value.tobytes()), "dtype": value.dtype.str}
    if kind is np.ndarray and value.dtype.kind in _KINDS:
        data = _text(np.ascontiguousarray(value).tobytes())
        return {"$array": data, "dtype": value.dtype.str, "shape": list(value.shape)}
    if kind is Tensor:
        return _tensor_to_plain(value, field)
    what = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, np.ndarray):
        what += f" of {value.dtype}"
    raise StateError(
        f"{field} is a {what}, and a saved state holds plain data only: numbers, text, bytes, "
        "lists, tuples, sets, dictionaries, arrays and tensors. Let state_dict() return those"
    )


def _items_to_plain(items: Any, field: str, depth: int) -> list[Any]:
    return [_to_plain(item, f"{field}[{i}]", depth + 1) for i, item in enumerate(items)]


def _tensor_to_plain(tensor: Tensor, field: str) -> dict[str, Any]:
    name = DTYPE_NAMES.get(tensor.dtype)
    if name not in _TORCH_DTYPES or tensor.layout is not torch.strided or not tensor.is_cpu:
        raise StateError(
            f"{field} is a tensor of {tensor.dtype}, {tensor.layout}, on {tensor.device}: a saved "
            "state holds dense ones on the CPU. Let state_dict() return tensor.cpu()"
        )
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return {"$tensor": _text(data), "dtype": name, "shape": list(tensor.shape)}


def _from_plain(plain: Any, field: str, depth: int) -> Any:
    _check_depth(field, depth)
    kind = type(plain)
    if plain is None or kind in (bool, int, str, float):
        return plain
    if kind is list:
        return [_from_plain(item, f"{field}[{i}]", depth + 1) for i, item in enumerate(plain)]
    if kind is not dict or not all(type(key) is str for key in plain):
        raise StateError(f"{field} is a {kind.__qualname__}, which no state holds")
    tag = next((key for key in plain if key[:1] == "$"), None)
    if tag is None:
        return {k: _from_plain(v, f"{field}[{k!r}]", depth + 1) for k, v in plain.items()}
    try:
        keys, rebuild = _REBUILDERS[tag]
        if plain.keys() != set(keys):
            raise ValueError(f"it has the keys {', '.join(plain)}")
        return rebuild(plain, field, depth)
    except (KeyError, MemoryError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, StateError):
            raise
        raise StateError(f"{field} is no {tag[1:]} that a state holds: {error}") from error


def _listed(plain: Any, tag: str, field: str, depth: int) -> list[Any]:
    if type(plain[tag]) is not list:
        raise TypeError(f"{type(plain[tag]).__name__} in the place of a list")
    items: list[Any] = _from_plain(plain[tag], field, depth + 1)
    return items


def _pairs(kind: type, tag: str) -> Callable[[Any, str, int], Any]:
    def rebuild(plain: Any, field: str, depth: int) -> Any:
        return kind([(key, value) for key, value in _listed(plain, tag, field, depth)])

    return rebuild


def _collection(kind: type, tag: str) -> Callable[[Any, str, int], Any]:
    return lambda plain, field, depth: kind(_listed(plain, tag, field, depth))


def _deque(plain: Any, field: str, depth: int) -> deque[Any]:
    items, most = _listed(plain, "$deque", field, depth), plain["most"]
    if most is not None and (type(most) is not int or most < len(items)):
        raise ValueError(f"most: {most!r}")
    return deque(items, most)


def _float(plain: Any, field: str, depth: int) -> float:
    if plain["$float"] not in ("inf", "-inf", "nan"):
        raise ValueError(repr(plain["$float"]))
    return float(plain["$float"])


def _number(plain: Any, field: str, depth: int) -> Any:
    return _numpy(_data(plain["$number"]), plain["dtype"], ())[()]


def _array(plain: Any, field: str, depth: int) -> npt.NDArray[Any]:
    return _numpy(_data(plain["$array"]), plain["dtype"], _shape(plain["shape"]))


def _numpy(data: bytes, name: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    if type(name) is not str or not _DTYPE.fullmatch(name):
        raise TypeError(f"dtype {name!r}")
    dtype = np.dtype(name)
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{len(data)} bytes for {shape} of {name}")
    array: npt.NDArray[Any] = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8)[:] = np.frombuffer(data, np.uint8)
    return array


def _tensor(plain: Any, field: str, depth: int) -> Tensor:
    data, dtype = _data(plain["$tensor"]), _TORCH_DTYPES[plain["dtype"]]
    shape = _shape(plain["shape"])
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{len(data)} bytes for {shape} of {dtype}")
    if not data:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)


def _shape(shape: Any) -> tuple[int, ...]:
    if type(shape) is not list or not all(type(n) is int and 0 <= n < 2**63 for n in shape):
        raise ValueError(f"shape {shape!r}")
    return tuple(shape)


def _text(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode("ascii")


def _data(text: Any) -> bytes:
    if type(text) is not str:
        raise TypeError(f"{type(text).__name__} in the place of base64")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"damaged base64 ({error})") from error


def _check_depth(field: str, depth: int) -> None:
    if depth > _DEEPEST:
        raise StateError(f"{field[:80]}… is nested more than {_DEEPEST} deep, or holds itself")


# By the key with the sign: all keys, and what makes the value of them.
_REBUILDERS: dict[str, tuple[tuple[str, ...], Callable[[Any, str, int], Any]]] = {
    "$float": (("$float",), _float),
    "$tuple": (("$tuple",), _collection(tuple, "$tuple")),
    "$set": (("$set",), _collection(set, "$set")),
    "$frozenset": (("$frozenset",), _collection(frozenset, "$frozenset")),
    "$deque": (("$deque", "most"), _deque),
    "$dict": (("$dict",), _pairs(dict, "$dict")),
    "$ordered": (("$ordered",), _pairs(OrderedDict, "$ordered")),
    "$bytes": (("$bytes",), lambda plain, *_: _data(plain["$bytes"])),
    "$bytearray": (("$bytearray",), lambda plain, *_: bytearray(_data(plain["$bytearray"]))),
    "$array": (("$array", "dtype", "shape"), _array),
    "$number": (("$number", "dtype"), _number),
    "$tensor": (("$tensor", "dtype", "shape"), _tensor),
}
