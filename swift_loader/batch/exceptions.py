"""Exceptions taken apart and put together again: what each carried, its causes, its group.

An exception often holds more than can travel, or more than anybody wants to wait for: a response,
a lock, the document that could not be parsed. So each value is pickled alone, into a bounded
buffer: what can't be pickled, or is too large, is left out by itself, long text is shortened. An
attribute that is left out is None: without it, a class that asks it for all that it has not itself
(`__getattr__`) fails where Python shows the exception. No constructor runs where the exception is
put together, so none can refuse what it is given.

What runs code of the user's (pickling a value, `__str__`) may take any time. A report waits half a
second for all of it, and goes without what has not come by then.
"""

from __future__ import annotations

import builtins
import inspect
import pickle
import reprlib
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from torch import Tensor, from_numpy

from swift_loader.batch.arena import Arena
from swift_loader.batch.codec import decode, encode
from swift_loader.batch.identity import class_by_token, is_importable, token_of
from swift_loader.batch.in_time import InTime, LateError
from swift_loader.batch.tree import dense_parts

__all__ = ["Told", "put_together", "summary_of", "tell"]

_WITHIN_S = 0.5  # so much a report waits for code of the user's

_VALUE_BYTES = 1 << 18  # of one argument or attribute
_MOST_BYTES = 1 << 20  # of all of them
_MOST_ERRORS = 32  # causes and members of groups
_TEXT = 10_000
_TRACEBACK_TEXT = 100_000
_READ_ONLY = {"message", "exceptions"}  # of a group, which its arguments are
T = TypeVar("T")

_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())  # none before Python 3.11
_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"


class Told(NamedTuple):
    """What is sent of an exception. `exception`: what `put_together` takes, None if it can't."""

    exception: bytes | None
    message: str
    traceback: str


def tell(error: BaseException) -> Told:
    """All that is sent of `error`. Never raises, asks each `__str__` once, and waits for none."""
    in_time = InTime(_WITHIN_S)
    message, traceback = _words(error, in_time)
    return Told(_taken_apart(error, in_time), message, traceback)


class _TooLargeError(Exception):
    """A value does not fit into its buffer; the pickling of it is given up."""


@dataclass(slots=True)
class _Node:
    """One exception. `links`: the places of cause, context and members of the group; -1 for none.

    A value is a pickle, or a text that stands for it.
    """

    kind: bytes
    args: list[bytes | str | list[int]]
    state: dict[str, bytes | str]
    cause: int
    context: int
    suppressed: bool


@dataclass(slots=True)
class _Room:
    in_time: InTime
    left: int = _MOST_BYTES

    def pickled(self, value: Any) -> bytes | str | None:
        """A pickle of `value`, a shortened text in its place, or None."""
        limit = min(_VALUE_BYTES, self.left)
        try:
            data = _soon(value, partial(_pickled, value, limit), self.in_time)
        except Exception:  # noqa: BLE001 - it can't travel, or not at that size
            return _cut(value, _TEXT) if isinstance(value, str) else None
        self.left -= len(data)
        return data


def _taken_apart(error: BaseException, in_time: InTime) -> bytes | None:
    """What `put_together` takes; None where the type can't travel."""
    errors = list(_chain(error))
    place = {id(each): number for number, each in enumerate(errors)}
    room = _Room(in_time)
    nodes = []
    for each in errors:
        kind = _kind_of(each, type(each) if each is error else None, in_time)
        if kind is None:
            return None
        args: list[bytes | str | list[int]] = []
        for value in each.args:
            if _is_group(each) and isinstance(value, (list, tuple)):
                args.append([place[id(one)] for one in value if id(one) in place])
            else:
                args.append(room.pickled(value) or f"<{_described(value)}, left out>")
        state = {}
        for name, value in _state_of(each).items():
            data = room.pickled(value)
            if data is None:
                data = room.pickled(None)
            if data is not None:  # or there is no room at all
                state[name] = data
        cause = place.get(id(each.__cause__), -1)
        context = place.get(id(each.__context__), -1)
        node = _Node(kind, args, state, cause, context, each.__suppress_context__)
        nodes.append(tuple(getattr(node, name) for name in _Node.__slots__))
    return pickle.dumps(nodes, 5)


def put_together(data: bytes) -> BaseException | None:
    """The exception again, without its traceback; None where its type isn't known here."""
    try:
        nodes = [_Node(*values) for values in pickle.loads(data)]
    except Exception:  # noqa: BLE001 - from a peer of another version
        return None
    errors: list[BaseException | None] = [None] * len(nodes)
    for number in reversed(range(len(nodes))):  # members of a group stand after it
        try:
            errors[number] = _made(nodes[number], errors)
        except Exception:  # noqa: BLE001 - a class that this process can't import
            if not number:
                return None
    for node, error in zip(nodes, errors, strict=True):
        if error is not None:
            error.__cause__ = errors[node.cause] if node.cause >= 0 else None
            error.__context__ = errors[node.context] if node.context >= 0 else None
            error.__suppress_context__ = node.suppressed
    return errors[0]


def _made(node: _Node, errors: list[BaseException | None]) -> BaseException:
    kind: type[BaseException] = decode(node.kind, np.empty(0, np.uint8))
    args = []
    for value in node.args:
        if isinstance(value, list):
            args.append([errors[place] for place in value if errors[place] is not None])
        else:
            args.append(_value(value, "<left out>"))
    base: Any = kind  # whose memory the class has; a constructor of the user's is not asked
    while base.__module__ != "builtins":
        base = base.__base__
    error: BaseException = base.__new__(kind, *args)
    error.args = tuple(args)
    members = _members_of(kind)
    for name, data in node.state.items():
        if name in _READ_ONLY:
            continue
        value = _value(data, None)
        if name in members:
            object.__setattr__(error, name, value)
        else:
            vars(error)[name] = value
    return error


def _value(data: bytes | str, otherwise: Any) -> Any:
    if isinstance(data, str):
        return data
    try:
        return pickle.loads(data)
    except Exception:  # noqa: BLE001 - of a class that this process can't import
        return otherwise


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, its causes and contexts and the members of its group; not all of very many."""
    found = [error]
    seen = {id(error)}
    for each in found:
        yield each
        members = each.args[1] if _is_group(each) and len(each.args) > 1 else ()
        for one in (each.__cause__, each.__context__, *members):
            if isinstance(one, BaseException) and id(one) not in seen and len(seen) < _MOST_ERRORS:
                seen.add(id(one))
                found.append(one)


def _is_group(error: BaseException) -> bool:
    return isinstance(error, _GROUP)


def _kind_of(error: BaseException, exact: type | None, in_time: InTime) -> bytes | None:
    """The class, pickled; of a cause the nearest base that can be."""
    for kind in [exact] if exact is not None else type(error).__mro__:
        try:
            encoded = partial(encode, kind, Arena(None))
            return encoded() if is_importable(kind) else in_time.run(encoded)
        except Exception:  # noqa: BLE001, S112 - it can't travel
            continue
    return None


def _state_of(error: BaseException) -> dict[str, Any]:
    """Attributes: in `__dict__`, in slots, and those that its builtin base holds."""
    names = _members_of(type(error)) - _READ_ONLY
    found = ((name, getattr(error, name, None)) for name in names)
    return {**{name: value for name, value in found if value is not None}, **vars(error)}


def _members_of(kind: type) -> set[str]:
    return {
        name
        for each in kind.__mro__
        if each not in (BaseException, object)
        for name, member in vars(each).items()
        if inspect.ismemberdescriptor(member)
    }


def _pickled(value: Any, limit: int) -> bytes:
    if isinstance(value, (str, bytes)) and len(value) > limit:
        raise _TooLargeError
    file = _Bounded(limit)
    _Pickler(file, 5).dump(value)
    return b"".join(file.pieces)


@dataclass(slots=True)
class _Bounded:
    """A file that takes so much and no more."""

    left: int
    pieces: list[bytes] = field(default_factory=list)

    def write(self, data: Any) -> int:
        self.left -= len(data)
        if self.left < 0:
            raise _TooLargeError
        self.pieces.append(bytes(data))
        return len(data)


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type):
            token = token_of(obj)
            if token is not None:
                return class_by_token, (token, obj.__module__, obj.__qualname__)
        elif isinstance(obj, (np.ndarray, Tensor)):
            if _nbytes(obj) > _VALUE_BYTES:
                raise _TooLargeError
            if type(obj) is Tensor and obj.is_cpu and not obj.requires_grad:
                try:
                    return from_numpy, (obj.numpy(),)
                except (TypeError, RuntimeError):  # a layout or dtype that numpy has not
                    return NotImplemented
        return NotImplemented


def _nbytes(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    return sum(dense.untyped_storage().nbytes() for dense in dense_parts(value))


# ---- as text


def summary_of(error: BaseException) -> str:
    """The type and the text, in a line. Never raises, and waits for nothing."""
    return _summary(error, _text(error, InTime(_WITHIN_S)))


def _summary(error: BaseException, text: str) -> str:
    return f"{type(error).__name__}: {text}"


def _words(error: BaseException, in_time: InTime) -> tuple[str, str]:
    """``str(error)``, and the traceback as Python prints it, with causes; both shortened.

    Of an exception that is very large, or slow to speak, it is a traceback with less art.
    """
    if not any(_is_large(each, in_time) for each in _chain(error)):
        with suppress(Exception):  # late, or a property of the user's that raises
            if all(map(_is_quick, _chain(error))):
                return _as_python_does(error)
            return in_time.run(partial(_as_python_does, error))
        texts = {id(each): _text_if_quick(each) for each in _chain(error)}
    else:
        texts = {id(each): _text(each, in_time) for each in _straight(error)}
    told = []
    for each in _straight(error):
        frames = "".join(traceback.format_tb(each.__traceback__))
        summary = _summary(each, texts.get(id(each), ""))
        told.append(f"Traceback (most recent call last):\n{frames}{summary}\n")
        if each.__cause__ is not None or each.__context__ is not None:
            told.append(f"\n{_CONTEXT if each.__cause__ is None else _CAUSE}\n\n")
    return texts[id(error)], _cut("".join(reversed(told)), _TRACEBACK_TEXT)


def _as_python_does(error: BaseException) -> tuple[str, str]:
    """A `__str__` that is code of the user's is asked where the traceback is made, and only there.

    (To the text of a builtin one, that adds names that may have been meant.)
    """
    shown = traceback.TracebackException.from_exception(error, compact=True)
    whole = _cut("".join(shown.format()), _TRACEBACK_TEXT)
    of_python = isinstance(type(error).__str__, FunctionType)
    text = str(shown)
    if not of_python or text.startswith(_FAILED):
        return _asked(error), whole
    return _cut(text, _TEXT), whole


def _text(error: BaseException, in_time: InTime) -> str:
    """``str(error)``, shortened; it takes no time over what the exception holds."""
    kind: Any = type(error)
    try:
        if kind.__str__ in _STR_OF_ARGS and _is_large(error, in_time):
            return in_time.run(partial(_text_of_args, error))
        return _asked(error) if _is_quick(error) else in_time.run(partial(_asked, error))
    except LateError:
        return _LATE
    except Exception as broken:  # noqa: BLE001 - a __repr__ of the user's that raises
        return f"(its arguments raised {type(broken).__name__})"


def _text_of_args(error: BaseException) -> str:
    shown = [arg if isinstance(arg, str) else _shown(arg) for arg in error.args]
    return _cut(shown[0] if len(shown) == 1 else f"({', '.join(shown)})", _TEXT)


def _text_if_quick(error: BaseException) -> str:
    return _asked(error) if _is_quick(error) else _LATE


def _asked(error: BaseException) -> str:
    try:
        return _cut(str(error), _TEXT)
    except Exception as broken:  # noqa: BLE001 - a __str__ of the user's that raises
        return f"(its __str__ raised {type(broken).__name__})"


def _is_quick(error: BaseException) -> bool:
    """Whether no code of the user's runs for its text, and for that of its notes."""
    kind: Any = type(error)
    notes = getattr(error, "__notes__", ()) if "__notes__" in vars(error) else ()
    return (
        kind.__str__ in (*_STR_OF_ARGS, OSError.__str__)
        and all(_is_plain(getattr(error, name, None)) for name in ("filename", "filename2"))
        and kind.__repr__ is BaseException.__repr__
        and all(map(_is_plain, error.args))
        and isinstance(notes, (list, tuple))
        and all(map(_is_plain, notes))
    )


def _is_plain(value: Any) -> bool:
    return value is None or type(value) in (str, bytes, int, float, bool)


def _straight(error: BaseException) -> Iterator[BaseException]:
    """The exception, its cause or context, and so on."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen and len(seen) < _MOST_ERRORS:
        seen.add(id(each))
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _is_large(error: BaseException, in_time: InTime) -> bool:
    """Whether an argument is large, or takes long."""
    for arg in error.args:
        try:
            _soon(arg, partial(_pickled, arg, _VALUE_BYTES), in_time)
        except (_TooLargeError, LateError):
            return True
        except Exception:  # noqa: BLE001, S112 - it can't be pickled: not large, as far as we know
            continue
    return False


def _soon(value: Any, task: Callable[[], T], in_time: InTime) -> T:
    """What `task` gives of `value`. Raises what it raises, and `LateError`."""
    return task() if _is_plain(value) else in_time.run(task)


def _described(value: Any) -> str:
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    if isinstance(value, (np.ndarray, Tensor)):
        return f"{kind} of shape {tuple(value.shape)}"
    return kind


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} … ({len(text):,} characters in all) … {text[-most // 2 :]}"


class _Shown(reprlib.Repr):
    def repr_instance(self, x: object, level: int) -> str:
        return f"<{_described(x)}>"


_shown: Callable[[Any], str] = _Shown().repr
_LATE = "(its text takes too long to wait for)"
_FAILED = ("<exception str() failed>", "<unprintable ")  # what Python writes in its place
_STR_OF_ARGS = (BaseException.__str__, KeyError.__str__)
