"""How classes and functions that can't be imported elsewhere are taken apart and put together.

Each is made empty and remembered first; what it holds follows, and may speak of it. A function
takes along of its module's globals those that it uses, and shares them with the other functions of
that module. (This is cloudpickle's way. `dill`, which is asked about what is left, is written in
Python throughout, loses the bases of a subclass of a generic class, such as
`torch.utils.data.Dataset`, and knows neither enumerations nor closures that hold themselves.)
"""

from __future__ import annotations

import builtins
import dataclasses
import dis
import importlib
import marshal
import sys
import typing
import warnings
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from struct import Struct
from types import (
    CellType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
)
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from swift_loader.batch import classes
from swift_loader.batch.classes import MADE_BY_CLASS_STATEMENT, annotations_of
from swift_loader.batch.identity import is_importable, register
from swift_loader.errors import ShippingError

__all__ = ["ByValue"]

Reduced = tuple[Any, ...]

_GLOBAL_NAMES = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"} | {
    *("STORE_GLOBAL", "DELETE_GLOBAL")
}
_Cached = type(lru_cache(len))
_Alias = getattr(typing, "TypeAliasType", None)  # since Python 3.12
#: objects of dataclasses that are compared by `is`
_MARKS = {
    id(mark): name
    for name, mark in vars(dataclasses).items()
    if name in ("MISSING", "KW_ONLY", "_HAS_DEFAULT_FACTORY") or name.startswith("_FIELD")
}


class ByValue:
    """Reduces what can't be imported elsewhere, for one pickle.

    `keeps`: the classes are known by tokens from then on, here and where they are read.
    """

    def __init__(self, keeps: bool = False) -> None:
        self._keeps = keeps
        self._globals_of: dict[int, _Globals] = {}
        self._aliases: set[int] = set()
        self._registrations: dict[int, classes.Registered] | None = None

    def reduce(self, obj: Any) -> Any:
        """How to pickle `obj`; `NotImplemented` if the pickler knows best."""
        reduce = _REDUCERS.get(type(obj))
        if reduce is not None:
            return reduce(obj)
        if type(obj) is FunctionType:
            return NotImplemented if is_importable(obj) else self._reduce_function(obj)
        if issubclass(type(obj), type):  # to Python 3.10, `Queue[int]` is an instance of `type`
            if is_importable(obj) or not obj.__flags__ & MADE_BY_CLASS_STATEMENT:
                return NotImplemented
            return self._reduce_class(obj)
        if type(obj) is _Alias:
            return NotImplemented if is_importable(obj) else self._reduce_alias(obj)
        if id(obj) in _MARKS:
            return mark_of_dataclasses, (_MARKS[id(obj)],)
        return NotImplemented

    def _reduce_class(self, kind: type) -> Reduced:
        lost, needed = classes.lost_in_travel(kind) if self._keeps else ("", False)
        if lost:
            story = (
                f"the class {kind.__qualname__} is made again in each worker without the keywords "
                f"of its class statement, which nobody knows any more, and {lost}. Put the class "
                "into a module, or give the script a guard (if __name__ == '__main__') and "
                "start_method='main'"
            )
            if needed:
                raise ShippingError(story)
            warnings.warn(story, stacklevel=2)
        if not self._keeps:
            return classes.reduce(kind, "", [])
        if self._registrations is None:
            self._registrations = classes.registrations()
        return classes.reduce(kind, register(kind), self._registrations.get(id(kind), []))

    def _reduce_function(self, function: FunctionType) -> Reduced:
        names = set(_global_names(function.__code__))
        used = {name: function.__globals__[name] for name in names & function.__globals__.keys()}
        cells = function.__closure__ or ()
        filled = [(cell, cell.cell_contents) for cell in cells if cell != CellType()]
        attributes = {
            "__defaults__": function.__defaults__,
            "__kwdefaults__": function.__kwdefaults__,
            "__doc__": function.__doc__,
            "__module__": function.__module__,
            "__qualname__": function.__qualname__,
            "__annotations__": annotations_of(function),
            **vars(function),
        }
        modules = list(_submodules(used.values(), function.__code__))
        shared = self._globals_of.get(id(function.__globals__))
        if shared is None:
            shared = _Globals(function.__globals__)
            self._globals_of[id(function.__globals__)] = shared
        made = make_function, (function.__code__, shared, function.__name__, cells)
        return (*made, (used, filled, attributes, modules), None, None, finish_function)

    def _reduce_alias(self, alias: Any) -> Reduced:
        if id(alias) in self._aliases:  # it speaks of itself: no more than its name can travel
            return typing.ForwardRef, (alias.__name__,)
        self._aliases.add(id(alias))
        return make_alias, (alias.__name__, alias.__value__, alias.__type_params__)


class _Globals:
    """Stands for the globals of a module of which functions travel."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace  # kept, so that no other gets its id

    def __reduce__(self) -> Reduced:
        return make_globals, (self._namespace.get("__name__"), self._namespace.get("__package__"))


def make_globals(name: str | None, package: str | None) -> dict[str, Any]:
    """The globals of a module before any function has put there what it uses."""
    return {"__name__": name, "__package__": package, "__builtins__": builtins}


def make_function(
    code: CodeType, namespace: dict[str, Any], name: str, cells: tuple[CellType, ...]
) -> FunctionType:
    """A function without what it refers to."""
    return FunctionType(code, namespace, name, None, cells)


def finish_function(function: FunctionType, rest: tuple[Any, ...]) -> None:
    """Give a function what it refers to."""
    used, filled, attributes, modules = rest
    for name in modules:
        importlib.import_module(name)
    function.__globals__.update(used)
    for cell, contents in filled:
        cell.cell_contents = contents
    for name, value in attributes.items():
        setattr(function, name, value)


def _global_names(code: CodeType) -> Iterator[str]:
    """The globals that a function or one inside it speaks of."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in _GLOBAL_NAMES:
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _submodules(used: Any, code: CodeType) -> Iterator[str]:
    """Modules reached through a package: `import a.b` binds `a`, and `a.b` must be imported too."""
    for package in used:
        if isinstance(package, ModuleType):
            prefix = package.__name__ + "."
            for name in list(sys.modules):
                if name.startswith(prefix):
                    parts = name.removeprefix(prefix).split(".")
                    if set(parts) <= set(code.co_names):
                        yield name


def make_cell() -> CellType:
    """A variable of an outer function, not yet set."""
    return CellType()


def make_cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    """A function with an empty cache."""
    return lru_cache(**parameters)(function)


def make_cached_property(function: Callable[[Any], Any], name: str | None) -> Any:
    """A cached property that knows what it is called."""
    made = cached_property(function)
    made.attrname = name
    return made


def make_mapping_proxy(mapping: dict[Any, Any]) -> Any:
    """A read-only view of a dict."""
    return MappingProxyType(mapping)


def make_typevar(
    name: str, constraints: tuple[Any, ...], bound: Any, covariant: bool, contravariant: bool
) -> Any:
    """A type variable, which pickle knows by its name only."""
    return cast(Callable[..., Any], TypeVar)(
        name, *constraints, bound=bound, covariant=covariant, contravariant=contravariant
    )


def mark_of_dataclasses(name: str) -> Any:
    """One of the objects that dataclasses knows by identity."""
    return getattr(dataclasses, name)


_dumped: WeakKeyDictionary[CodeType, tuple[str, bytes]] = WeakKeyDictionary()


def _reduce_code(code: CodeType) -> Any:
    """The same bytes each time: `marshal`'s depend on who refers to what is in the code."""
    filename, dumped = _dumped.get(code, ("", b""))
    if not dumped or filename != code.co_filename:  # which does not count where codes are compared
        dumped = marshal.dumps(code)
        _dumped[code] = code.co_filename, dumped
    return marshal.loads, (dumped,)


def _reduce_typevar(variable: TypeVar) -> Any:
    if is_importable(variable):
        return NotImplemented
    made_of = variable.__name__, variable.__constraints__, variable.__bound__
    return make_typevar, (*made_of, variable.__covariant__, variable.__contravariant__)


def _reduce_parameters(variable: Any) -> Any:
    """A `ParamSpec` or a `TypeVarTuple`, which pickle knows by its name only, too."""
    return NotImplemented if is_importable(variable) else (type(variable), (variable.__name__,))


def _reduce_new_type(kind: Any) -> Any:
    """A `NewType`, which pickle knows by its name only, too."""
    if is_importable(kind):
        return NotImplemented
    return type(kind), (kind.__qualname__, kind.__supertype__), {"__module__": kind.__module__}


def make_alias(name: str, value: Any, type_params: tuple[Any, ...]) -> Any:
    """What a `type` statement gives."""
    return cast(Any, typing).TypeAliasType(name, value, type_params=type_params)


def _reduce_cached(cached: Any) -> Any:
    if is_importable(cached):
        return NotImplemented
    return make_cached, (cached.__wrapped__, cached.cache_parameters())


def _reduce_method(method: MethodType) -> Any:
    """Not by its name: the class may not have it yet when it is looked up there."""
    function = method.__func__
    if type(function) is not FunctionType or is_importable(function):
        return NotImplemented
    return MethodType, (function, method.__self__)


def _reduce_module(module: ModuleType) -> Any:
    if sys.modules.get(module.__name__) is not module:
        return NotImplemented
    return importlib.import_module, (module.__name__,)


_REDUCERS: dict[type, Callable[[Any], Any]] = {
    CodeType: _reduce_code,
    CellType: lambda cell: (make_cell, ()),  # filled by the functions that use it
    ModuleType: _reduce_module,
    MethodType: _reduce_method,
    Struct: lambda it: (Struct, (it.format,)),
    property: lambda it: (property, (it.fget, it.fset, it.fdel, it.__doc__)),
    staticmethod: lambda it: (staticmethod, (it.__func__,)),
    classmethod: lambda it: (classmethod, (it.__func__,)),
    MappingProxyType: lambda proxy: (make_mapping_proxy, (dict(proxy),)),
    cached_property: lambda it: (make_cached_property, (it.func, it.attrname)),  # has a lock
    TypeVar: _reduce_typevar,
    typing.NewType: _reduce_new_type,
    typing.ParamSpec: _reduce_parameters,
    _Cached: _reduce_cached,
}
if sys.version_info >= (3, 11):
    _REDUCERS[typing.TypeVarTuple] = _reduce_parameters
