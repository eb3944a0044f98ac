"""The functional names of our pipes, on the tables that torch keeps for everybody's.

Torch lets a functional name (`dp.prefetch()`) be registered once, and raises at the second time.
Other packages bring pipes with the same names (torchdata up to 0.9 brings most of ours), and a
process may import both, in either order. One rule serves both orders: **a name of ours gives way.**
Where somebody else holds a name already, ours stays reachable as a class; where somebody registers
a name that is ours, they get it. Nothing in this package depends on functional names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch.utils.data import IterDataPipe, MapDataPipe

__all__ = ["functional_datapipe", "register_on", "registered_by_us"]

_Pipe = TypeVar("_Pipe", bound=Callable[..., Any])
_Base = type[IterDataPipe[Any]] | type[MapDataPipe[Any]]

# (base class, functional name) -> what we put into torch's table under that name
_ours: dict[tuple[_Base, str], Callable[..., Any]] = {}


def functional_datapipe(name: str) -> Callable[[_Pipe], _Pipe]:
    """Decorator: `dp.<name>(...)` calls the decorated class or function with `dp` before the rest.

    For subclasses of `MapDataPipe`, `dp` is a map-style pipe, for all else an iterable one. Where
    `name` is taken by another package, it keeps its meaning and the decorated thing is returned as
    it is.
    """

    def register(pipe: _Pipe) -> _Pipe:
        is_map = isinstance(pipe, type) and issubclass(pipe, MapDataPipe)
        register_on(MapDataPipe if is_map else IterDataPipe, name, pipe)
        return pipe

    return register


def register_on(base: _Base, name: str, pipe: Callable[..., Any]) -> None:
    """Register `pipe` as `base`'s functional `name`, unless somebody else holds the name.

    `base` is what the name is called on, which differs from the pipe's own kind for converters.
    """
    if name in base.functions and not registered_by_us(base, name):
        return
    base.functions.pop(name, None)
    base.register_datapipe_as_function(name, pipe)
    _ours[base, name] = base.functions[name]


def registered_by_us(base: _Base, name: str) -> bool:
    """Is `name` on `base` a pipe of this package?"""
    return name in base.functions and base.functions[name] is _ours.get((base, name))


def _give_way_to_others(base: _Base) -> None:
    """Make `base.register_datapipe_as_function` hand over a name of ours instead of raising."""
    torch_register: Any = base.register_datapipe_as_function

    def register_datapipe_as_function(
        cls: _Base, function_name: str, cls_to_register: Any, *args: Any, **kwargs: Any
    ) -> None:
        if registered_by_us(cls, function_name):
            del cls.functions[function_name]
        torch_register.__func__(cls, function_name, cls_to_register, *args, **kwargs)

    base.register_datapipe_as_function = classmethod(  # type: ignore[method-assign,assignment]
        register_datapipe_as_function
    )


_give_way_to_others(IterDataPipe)
_give_way_to_others(MapDataPipe)
