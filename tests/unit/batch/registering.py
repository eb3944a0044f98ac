"""A module with a base class and metaclasses that do something when a class is made."""

from __future__ import annotations

from typing import Any

made: dict[str, str] = {}


class Strict:
    def __init_subclass__(cls, key: str) -> None:
        made[key] = cls.__name__


class Lenient:
    def __init_subclass__(cls, key: str = "none") -> None:
        made[key] = cls.__name__


class Reads(type):
    """Reads the body."""

    def __init__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> None:
        super().__init__(name, bases, body)
        if bases:
            made[body["key"]] = name


class Body(metaclass=Reads):
    pass


class Wants(type):
    def __new__(meta, name: str, bases: tuple[type, ...], body: dict[str, Any], *, key: str) -> Any:
        return super().__new__(meta, name, bases, body)

    def __init__(cls, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args)
