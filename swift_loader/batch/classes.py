"""How a class is taken apart, and put together again in a process that can't import it.

It is made empty and remembered first; its attributes follow, and may speak of it.
"""

from __future__ import annotations

from collections import namedtuple
from enum import Enum, EnumMeta
from functools import cached_property
from types import FunctionType, MemberDescriptorType
from typing import Any, cast

__all__ = ["MADE_BY_CLASS_STATEMENT", "reduce"]

Reduced = tuple[Any, ...]

MADE_BY_CLASS_STATEMENT = 1 << 9  # the interpreter's flag, in `__flags__`, for types on its heap
#: must be there when the class is made
_IN_BODY = ("__module__", "__qualname__", "__doc__", "__slots__", "__orig_bases__")
#: are there when the class has been made
_MADE_BY_TYPE = {"__dict__", "__weakref__", "_abc_impl", *_IN_BODY}
_MADE_BY_MEMBER = {"_value_", "_name_", "__objclass__", "_sort_order_"}
#: what an enumeration holds beside its members; the rest its metaclass makes
_METHODS = (FunctionType, property, classmethod, staticmethod, cached_property)


def reduce(kind: type) -> Reduced:
    """How to pickle a class by value: a call, and what completes the result."""
    if isinstance(kind, EnumMeta) and kind.__members__:
        return _reduce_enum(kind)
    if kind.__bases__ == (tuple,) and hasattr(kind, "_field_defaults"):
        return _reduce_named_tuple(kind)
    return _reduce_class(kind)


def _reduce_class(kind: type) -> Reduced:
    namespace = vars(kind)
    body = {name: namespace[name] for name in _IN_BODY if name in namespace}
    body["__qualname__"] = kind.__qualname__
    rest = {
        name: value
        for name, value in namespace.items()
        if name not in _MADE_BY_TYPE and not _is_slot(value, kind)
    }
    made = make_class, (type(kind), kind.__name__, kind.__bases__, body)
    return (*made, rest, None, None, set_attributes)


def _is_slot(value: Any, kind: type) -> bool:
    return isinstance(value, MemberDescriptorType) and value.__objclass__ is kind


def make_class(meta: type, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
    """A class without its methods."""
    return meta(name, bases, body)


def set_attributes(kind: type, attributes: dict[str, Any]) -> None:
    """Give a class its methods and whatever else it holds."""
    for name, value in attributes.items():
        type.__setattr__(kind, name, value)


def _reduce_named_tuple(kind: Any) -> Reduced:
    names = kind.__name__, kind.__module__, kind.__qualname__
    bare = vars(namedtuple("bare", kind._fields))
    rest = {
        name: value
        for name, value in vars(kind).items()
        if name not in bare or name in ("__doc__", "__orig_bases__")
    }
    made = make_named_tuple, (names, kind._fields, kind._field_defaults)
    return (*made, rest, None, None, set_attributes)


def make_named_tuple(
    names: tuple[str, str, str], fields: tuple[str, ...], defaults: dict[str, Any]
) -> Any:
    """A class of named tuples."""
    name, module, qualname = names
    kind = cast(Any, namedtuple)(name, fields, defaults=list(defaults.values()), module=module)
    kind.__qualname__ = qualname
    return kind


def _reduce_enum(kind: EnumMeta) -> Reduced:
    members: dict[str, Enum] = dict(kind.__members__.items())
    values = [(name, member._value_) for name, member in members.items()]
    names = kind.__name__, kind.__module__, kind.__qualname__, kind.__doc__
    bare = vars(Enum("bare", ["member"]))
    of_class = {
        name: value
        for name, value in vars(kind).items()
        if isinstance(value, _METHODS) and name not in bare
    }
    of_members = {
        name: {key: value for key, value in vars(member).items() if key not in _MADE_BY_MEMBER}
        for name, member in members.items()
    }
    made = make_enum, (type(kind), kind.__bases__, names, values)
    return (*made, (of_class, of_members), None, None, finish_enum)


def make_enum(
    meta: type[EnumMeta],
    bases: tuple[type, ...],
    names: tuple[str, str, str, str | None],
    values: list[tuple[str, Any]],
) -> EnumMeta:
    """An enumeration with these members and nothing else yet."""
    name, module, qualname, doc = names
    body: Any = meta.__prepare__(name, bases)
    body["__module__"], body["__qualname__"], body["__doc__"] = module, qualname, doc
    for member, value in values:
        body[member] = value
    return meta(name, bases, body)


def finish_enum(kind: EnumMeta, rest: tuple[dict[str, Any], dict[str, dict[str, Any]]]) -> None:
    """Give it its methods, and its members what their `__init__` had set."""
    of_class, of_members = rest
    for name, value in of_class.items():
        setattr(kind, name, value)
    for name, attributes in of_members.items():
        for key, value in attributes.items():
            object.__setattr__(kind.__members__[name], key, value)
