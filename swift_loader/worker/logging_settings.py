"""Levels and handlers of loggers: those of the training process, in a worker.

A handler is made again of what it holds, but for its lock and its stream. One that can't travel
(a queue, a socket, a text in memory) is kept where the script's import has made one of its class
for the worker.

A module may add handlers to the logger of its name, when it is imported. So where a worker has not
imported it yet, it gets none here; and of an installed library's loggers, only files travel, which
a library does not open by itself.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from swift_loader.worker.carried import Carried, carried, name_of, of_script
from swift_loader.worker.left_out import warn_left_out
from swift_loader.worker.script import state

__all__ = ["apply_logging", "read_logging"]

_STREAMS = ("stdout", "stderr")
_FOLDERS = {"site-packages", "dist-packages"}
_HOOKS = ("__reduce__", "__reduce_ex__", "__getstate__")


class _Found(NamedTuple):
    """A handler. `missed`: a worker that has none like it says so."""

    name: str
    made_of: Carried
    missed: bool


class _Logger(NamedTuple):
    """What was set of a logger. `of_module`: it has the name of a module, or of a part of one."""

    level: int
    disabled: bool
    propagate: bool
    of_module: bool
    of_library: bool
    handlers: list[tuple[Any, ...]]  # each a `_Found`


def read_logging(module: Any) -> dict[str, Any]:
    """Of this process."""
    root = logging.root
    return {
        "off": root.manager.disable,
        "root": tuple(_read_logger(root)),
        "others": {
            logger.name: tuple(_read_logger(logger))
            for logger in list(root.manager.loggerDict.values())
            if isinstance(logger, logging.Logger) and _is_set(logger)
        },
    }


def apply_logging(module: Any, found: dict[str, Any]) -> None:
    """Those of this process are replaced where the script's import made them."""
    logging.disable(found["off"])
    _apply_logger(logging.root, _Logger(*found["root"]))
    for name, about in found["others"].items():
        _apply_logger(logging.getLogger(name), _Logger(*about))


def _is_set(logger: logging.Logger) -> bool:
    return bool(
        logger.level != logging.NOTSET or logger.disabled or not logger.propagate or logger.handlers
    )


def _read_logger(logger: logging.Logger) -> _Logger:
    module = _module_of(logger)
    of_library = module in sys.modules and _is_installed(module)
    handlers = [
        tuple(_read_handler(handler))
        for handler in logger.handlers
        if not of_library or isinstance(handler, logging.FileHandler)
    ]
    about = logger.level, logger.disabled, logger.propagate
    return _Logger(*about, module in sys.modules, of_library, handlers)


def _module_of(logger: logging.Logger) -> str:
    """The module that it may be named after."""
    return "" if logger is logging.root else logger.name.partition(".")[0]


def _is_installed(module: str) -> bool:
    folders = Path(getattr(sys.modules[module], "__file__", None) or "").parts
    return module in sys.stdlib_module_names or not _FOLDERS.isdisjoint(folders)


def _apply_logger(logger: logging.Logger, found: _Logger) -> None:
    logger.setLevel(found.level)
    if found.of_module and _module_of(logger) not in sys.modules:
        return
    logger.disabled, logger.propagate = found.disabled, found.propagate
    of_others = found.of_library and not state.forked
    if state.imported or of_others or not logger.handlers:  # not where they were forked, or Ray's
        handlers = [_Found(*one) for one in found.handlers]
        here = list(logger.handlers)
        made = list(_handlers(logger.name, handlers, here))
        logger.handlers[:] = [*made, *here] if found.of_library else made


def _handlers(
    logger: str, found: list[_Found], here: list[logging.Handler]
) -> Iterator[logging.Handler]:
    for one in found:
        own = next((each for each in here if name_of(type(each)) == one.name), None)
        if own is not None:
            here.remove(own)
        try:
            yield _made(*one.made_of.value())
        except Exception as error:  # noqa: BLE001 - a file that can't be opened, a class not there
            if own is not None:
                yield own
            elif one.missed:
                warn_left_out(f"a handler of the {logger} logger, {one.name}", error)


def _read_handler(handler: logging.Handler) -> _Found:
    if isinstance(handler, logging.NullHandler):  # a worker need not import its class
        return _Found(name_of(type(handler)), carried((logging.NullHandler, {}, "")), False)
    kind = type(handler)
    parts = (handler, handler.formatter, *handler.filters)
    missed = kind in (logging.StreamHandler, logging.FileHandler) or any(map(of_script, parts))
    if any(name in vars(each) for each in kind.__mro__[:-1] for name in _HOOKS):
        about = handler, handler.level, handler.formatter, handler.filters
        return _Found(name_of(kind), carried((None, about, "")), missed)
    made_of = {name: value for name, value in vars(handler).items() if name != "lock"}
    stream = made_of.pop("stream", None)
    source = next((name for name in _STREAMS if stream and stream is getattr(sys, name)), "")
    if isinstance(handler, logging.FileHandler):
        if handler.baseFilename == os.devnull:
            return _Found(name_of(kind), Carried(None), False)
        made_of["mode"] = "a"
        source = "file" if stream is not None else ""
    elif stream is not None and not source:
        return _Found(name_of(kind), Carried(None, "its stream is of one process"), False)
    return _Found(name_of(kind), carried((kind, made_of, source)), missed)


def _made(kind: Any, made_of: Any, source: str) -> logging.Handler:
    if kind is None:
        handler, level, formatter, filters = made_of
        handler.setLevel(level)
        handler.setFormatter(formatter)
        handler.filters[:] = filters
        return handler  # type: ignore[no-any-return]
    handler = kind.__new__(kind)
    logging.Handler.__init__(handler)  # a lock, and a place among those that are flushed at the end
    vars(handler).update(made_of)
    if isinstance(handler, logging.FileHandler):
        handler.stream = handler._open() if source else None
    elif source:
        handler.stream = getattr(sys, source)
    return handler  # type: ignore[no-any-return]
