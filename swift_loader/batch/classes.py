"""How a class is taken apart, and put together again in a process that can't import it.

It is made empty and remembered first; its attributes follow, and may speak of it. A process that
knows the class already, by the token that it travels with, keeps the one it has: so the process
that ships has it once, and so has a worker that is sent it twice.

What runs when a class is made is run again only where it is code of a module, which each process
has of its own: the hooks of a base or metaclass that travels by value have run, and what they
registered travels too. What such code was given in the class statement (keywords, the body) is not
known any more: see `lost_in_travel`.
"""

from __future__ import annotations

import abc
import importlib
import inspect
import sys
from abc import ABCMeta
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from enum import Enum, EnumMeta
from functools import cached_property
from types import FunctionType, MemberDescriptorType
from typing import Any, cast

from swift_loader.batch.identity import class_of, is_importable, register

__all__ = [
    *("MADE_BY_CLASS_STATEMENT", "annotations_of", "lost_in_travel", "reduce"),
    "registrations",
]

Reduced = tuple[Any, ...]
Registered = list[tuple[ABCMeta, type]]  # abstract base class, and what was registered with it

MADE_BY_CLASS_STATEMENT = 1 << 9  # the interpreter's flag, in `__flags__`, for types on its heap
#: must be there when the class is made
_IN_BODY = ("__module__", "__qualname__", "__doc__", "__slots__", "__orig_bases__")
#: are there when the class has been made
_MADE_BY_TYPE = {"__dict__", "__weakref__", "_abc_impl", *_IN_BODY}
#: annotations, which travel by themselves, and what makes them since Python 3.14; and what
#: `pickle` keeps in a class with its first object
_MADE_LATER = {"__annotate_func__", "__annotations__", "__annotations_cache__", "__slotnames__"}
_MADE_BY_MEMBER = {"_value_", "_name_", "__objclass__", "_sort_order_"}
#: what an enumeration holds beside its members; the rest its metaclass makes
_METHODS = (FunctionType, property, classmethod, staticmethod, cached_property)


def reduce(kind: type, token: str, registered: Registered) -> Reduced:
    """How to pickle a class by value: a call, and what completes the result.

    `token`: what it is known by from then on; empty where each process that reads it is to have
    one of its own. `registered`: what it is registered with, see `registrations`.
    """
    if isinstance(kind, EnumMeta):
        make, arguments, finish, rest = _reduce_enum(kind)
    elif kind.__bases__ == (tuple,) and hasattr(kind, "_field_defaults"):
        make, arguments, finish, rest = _reduce_named_tuple(kind)
    else:
        make, arguments, finish, rest = _reduce_class(kind)
    own = [(kind, other) for other in _registered_here(kind)]
    state = token, finish, rest, own + registered
    return made, (token, make, arguments), state, None, None, finished


def made(token: str, make: Callable[..., type], arguments: tuple[Any, ...]) -> type:
    """The class with this token, without what it holds where it is new."""
    known = class_of(token)
    return make(*arguments) if known is None else known


def finished(kind: type, rest: tuple[str, Callable[[type, Any], None], Any, Registered]) -> None:
    """Give a class that is new here what it holds."""
    token, finish, held, registered = rest
    if class_of(token) is not None:
        return
    finish(kind, held)
    for base, other in registered:
        base.register(other)
    if token:
        register(kind, token)
        main = sys.modules.get("__main__")  # where a pickle of an instance looks for it
        if kind.__module__ == "__main__" and "." not in kind.__qualname__:
            vars(main).setdefault(kind.__qualname__, kind)


def registrations() -> dict[int, Registered]:
    """What was registered with abstract base classes that each process has of its own.

    By the id of the class that was: ``Mapping.register(kind)``.
    """
    found: dict[int, Registered] = {}
    seen: set[int] = set()
    left: list[type] = [object]
    kind: type
    while left:
        for kind in type.__subclasses__(left.pop()):
            if id(kind) in seen:  # a metaclass may have made them unhashable
                continue
            seen.add(id(kind))
            left.append(kind)
            others = _registered_here(kind)
            if others and is_importable(kind):
                for other in others:
                    found.setdefault(id(other), []).append((cast(ABCMeta, kind), other))
    return found


def _registered_here(kind: type) -> list[type]:
    """The classes that are registered with this one."""
    if not isinstance(kind, ABCMeta) or "_abc_impl" not in vars(kind):
        return []
    references = abc._get_dump(kind)[0]  # type: ignore[attr-defined]
    return [other for reference in references if (other := reference()) is not None]


def lost_in_travel(kind: type) -> tuple[str, bool]:
    """What code of a module is given in the class statement, and would miss where `kind` is made
    again; empty if nothing. And whether it can't do without.

    Code that travels by value is not run again.
    """
    hook, owner = _hook(kind)
    meta: Any = type(kind)
    code = [(owner, "__init_subclass__", _parameters(hook))]
    for each in meta.__mro__:
        for name in ("__new__", "__init__"):
            found = _parameters(vars(each).get(name))
            code.append((each, name, [one for one in found if one.kind is one.KEYWORD_ONLY]))
    for where, name, taken in code:
        if taken and is_importable(where) and where.__module__ not in _KNOWN_TO_DO:
            listed = ", ".join(one.name for one in taken)
            needed = any(one.default is one.empty for one in taken)
            return f"{where.__qualname__}.{name} takes {listed} in it", needed
    return "", False


_KNOWN_TO_DO = ("abc", "builtins", "enum", "typing", "typing_extensions")


def _parameters(function: Any) -> list[inspect.Parameter]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # it is written in C
        return []
    return [one for one in parameters if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)]


def _hook(kind: type) -> tuple[Any, type]:
    """The `__init_subclass__` that ran when `kind` was made, and the class that has it."""
    for base in kind.__mro__[1:]:
        if "__init_subclass__" in vars(base):
            return getattr(base, "__init_subclass__"), base  # noqa: B009 - not mypy's business
    raise AssertionError  # object has one


def _reduce_class(kind: type) -> Reduced:
    namespace = vars(kind)
    body = {name: namespace[name] for name in _IN_BODY if name in namespace}
    body["__qualname__"] = kind.__qualname__
    rest = {
        name: value
        for name, value in namespace.items()
        if name not in _MADE_BY_TYPE and name not in _MADE_LATER and not _is_slot(value, kind)
    }
    rest.update(_annotations(kind))
    _, owner = _hook(kind)
    meta: Any = type(kind)
    maker = next(each for each in meta.__mro__ if is_importable(each))
    if meta.__name__ == "_TypedDictMeta":  # it takes other bases than the class has then
        maker = type
    quiet = owner is not object and not is_importable(owner)
    if maker is meta and meta.__module__ not in _KNOWN_TO_DO:
        plain = {name: value for name, value in rest.items() if _is_plain(value)}
        body = {**plain, **body}  # what it may read
    arguments = maker, meta, kind.__name__, kind.__bases__, body, quiet
    return make_class, arguments, set_attributes, rest


def _annotations(kind: type) -> dict[str, Any]:
    """Under their name, where the class has some of its own."""
    if "__annotations__" in vars(kind) or vars(kind).get("__annotate_func__") is not None:
        found = annotations_of(kind)
        return {"__annotations__": found} if found else {}  # whoever asks makes an empty one
    return {}


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (str, bytes, int, float, bool)


def _is_slot(value: Any, kind: type) -> bool:
    return isinstance(value, MemberDescriptorType) and value.__objclass__ is kind


def make_class(
    maker: type,
    meta: type,
    name: str,
    bases: tuple[type, ...],
    body: dict[str, Any],
    quiet: bool,
) -> Any:
    """A class without its methods.

    `maker` is the metaclass, or the nearest base of it that each process has of its own. `quiet`:
    a base's `__init_subclass__` has run, and is not run again.
    """
    with _without_hook(bases) if quiet else nullcontext():
        if maker is meta:
            return meta(name, bases, body)
        return cast(Any, maker).__new__(meta, name, bases, body)


@contextmanager
def _without_hook(bases: tuple[type, ...]) -> Iterator[None]:
    for owner in (each for base in bases for each in base.__mro__):
        hook = vars(owner).get("__init_subclass__")
        if hook is not None:
            break
    if owner is object or hook is None:
        yield
        return
    type.__delattr__(owner, "__init_subclass__")
    try:
        yield
    finally:
        type.__setattr__(owner, "__init_subclass__", hook)


def set_attributes(kind: type, attributes: dict[str, Any]) -> None:
    """Give a class its methods and whatever else it holds."""
    for name, value in attributes.items():
        type.__setattr__(kind, name, value)


def _reduce_named_tuple(kind: Any) -> Reduced:
    names = kind.__name__, kind.__module__, kind.__qualname__
    other = namedtuple("other", kind._fields)  # type: ignore[misc]
    bare = vars(other)  # empty once the collector has the class
    rest = {
        name: value
        for name, value in vars(kind).items()
        if name not in _MADE_LATER and (name not in bare or name in ("__doc__", "__orig_bases__"))
    }
    rest.update(_annotations(kind))
    arguments = names, kind._fields, kind._field_defaults
    return make_named_tuple, arguments, set_attributes, rest


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
    other = Enum("other", ["member"])
    bare = vars(other)
    of_class = {
        name: value
        for name, value in vars(kind).items()
        if isinstance(value, _METHODS) and name not in bare
    }
    of_members = {
        name: {key: value for key, value in vars(member).items() if key not in _MADE_BY_MEMBER}
        for name, member in members.items()
    }
    arguments = type(kind), kind.__bases__, names, values, _made_of(kind, members)
    return make_enum, arguments, finish_enum, (of_class, of_members)


def _made_of(kind: Any, members: dict[str, Enum]) -> Any:
    """The builtin type that holds a member's data, and the data; None where its value makes it."""
    data_type = kind._member_type_
    own = any(
        vars(each).get("__new_member__") for each in kind.__mro__ if each.__module__ != "enum"
    )
    if not own and data_type.__module__ == "builtins":
        return None
    base: Any = next(
        one for one in data_type.__mro__ if not one.__flags__ & MADE_BY_CLASS_STATEMENT
    )
    if base is object:
        return base, [()] * len(members)
    taken = getattr(base, "__getnewargs__", None)
    return base, [taken(one) if taken else base.__reduce__(one)[1] for one in members.values()]


def make_enum(
    meta: type[EnumMeta],
    bases: tuple[type, ...],
    names: tuple[str, str, str, str | None],
    values: list[tuple[str, Any]],
    made_of: tuple[Any, list[tuple[Any, ...]]] | None,
) -> EnumMeta:
    """An enumeration with these members and nothing else yet."""
    name, module, qualname, doc = names
    body: Any = meta.__prepare__(name, bases)
    body["__module__"], body["__qualname__"], body["__doc__"] = module, qualname, doc
    if made_of is not None:
        body["__new__"] = _giving(*made_of, [value for _, value in values])
    for member, value in values:
        body[member] = value
    return meta(name, bases, body)


def _giving(base: Any, data: list[tuple[Any, ...]], values: list[Any]) -> Callable[..., Any]:
    """A `__new__` that gives one member after the other."""
    left = zip(data, values, strict=True)

    def new(kind: Any, *_: Any) -> Any:
        own, value = next(left)
        member = base.__new__(kind, *own)
        member._value_ = value
        return member

    return new


def finish_enum(kind: EnumMeta, rest: tuple[dict[str, Any], dict[str, dict[str, Any]]]) -> None:
    """Give it its methods, and its members what their `__init__` had set."""
    of_class, of_members = rest
    for name, value in of_class.items():
        setattr(kind, name, value)
    for name, attributes in of_members.items():
        for key, value in attributes.items():
            object.__setattr__(kind.__members__[name], key, value)


def annotations_of(obj: Any) -> Any:
    """The annotations of a function or class; as text where they name what is not there.

    Such as what is imported for type checkers only. Python 3.14 evaluates them when they are asked
    for, so only then is an error seen.
    """
    try:
        return obj.__annotations__
    except Exception:  # noqa: BLE001 - whatever the expressions raise
        library = importlib.import_module("annotationlib")
        return library.get_annotations(obj, format=library.Format.STRING)
