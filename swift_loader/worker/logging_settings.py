"""Levels of loggers and the handlers of the root one: those of the training process, in a worker.

A handler is made again of what it holds, but for its lock and its stream. One that can't travel
(a queue, a socket, a text in memory) is kept where the script's import has made one of its class
for the worker.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from swift_loader.worker.carried import Carried, carried, name_of, of_script
from swift_loader.worker.left_out import warn_left_out
from swift_loader.worker.script import state

__all__ = ["apply_logging", "read_logging"]

_STREAMS = ("stdout", "stderr")
_HOOKS = ("__reduce__", "__reduce_ex__", "__getstate__")


class _Found(NamedTuple):
    """A handler of the root logger. `missed`: a worker that has none like it says so."""

    name: str
    made_of: Carried
    missed: bool


def read_logging(module: Any) -> dict[str, Any]:
    """Of this process."""
    loggers = [
        logger
        for logger in logging.root.manager.loggerDict.values()
        if isinstance(logger, logging.Logger) and logger.level != logging.NOTSET
    ]
    return {
        "disabled": logging.root.manager.disable,
        "root": logging.root.level,
        "levels": {logger.name: logger.level for logger in loggers},
        "handlers": [tuple(_read_handler(handler)) for handler in logging.root.handlers],
    }


def apply_logging(module: Any, found: dict[str, Any]) -> None:
    """Those of this process are replaced where the script's import made them."""
    logging.disable(found["disabled"])
    logging.root.setLevel(found["root"])
    for name, level in found["levels"].items():
        logging.getLogger(name).setLevel(level)
    if not logging.root.handlers or state.imported:  # not where they were forked, or are Ray's
        handlers = [_Found(*one) for one in found["handlers"]]
        logging.root.handlers[:] = list(_handlers(handlers, list(logging.root.handlers)))


def _handlers(found: list[_Found], here: list[logging.Handler]) -> Iterator[logging.Handler]:
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
                warn_left_out(f"a handler of the root logger, {one.name}", error)


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
