"""The ``logger`` option: one log file a process role, by loguru, and nothing unless asked for.

```python
config = log_config(logger)               # LogConfig | None; ConfigError for a bad value
log = open_log(config, consumer_role(0))  # in each process
log.logger.info("seed {}", seed)
log.close()
```

`LogConfig` is what travels (pickled) to workers, which call `open_log` for themselves.

* ``logger=None``: nothing is configured. Messages go to the user's own ``loguru.logger`` under the
  name ``swift_loader``, which is switched off, as loguru advises to libraries. A user who wants
  them in his own sinks calls ``loguru.logger.enable("swift_loader")``.
* A path prefix or a dict: messages go to sinks of ours, on a logger of its own. The user's sinks
  are neither removed nor written to, and our files never get the user's messages.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

import loguru

from swift_loader.errors import ConfigError
from swift_loader.telemetry.output import Output

if TYPE_CHECKING:
    from loguru import Logger

__all__ = ["LogConfig", "LogHandle", "consumer_role", "log_config", "open_log", "worker_role"]

_FORMAT = "{time:YYYY-MM-DD HH:mm:ss.SSS} | {level: <8} | {extra[swift_loader]} | {message}"
_LEVELS = ("TRACE", "DEBUG", "INFO", "SUCCESS", "WARNING", "ERROR", "CRITICAL")
_KEYS = ("path", "stdout", "level")
_tokens = itertools.count()  # of open logs: each has the messages of its own alone
_ROLE = re.compile(r"[A-Za-z0-9._-]+\Z")

loguru.logger.disable("swift_loader")


@dataclass(frozen=True)
class LogConfig:
    """The validated `logger` option; small and picklable, so that it can travel to workers.

    `path`: prefix of the files (``"logs/run-"`` gives ``logs/run-consumer-0.log``), or None for no
    file. `stdout`: write to the process's standard output too. `level`: the lowest level written,
    one of loguru's names (default ``"INFO"``) or its number.
    """

    path: str | None = None
    stdout: bool = False
    level: str | int = "INFO"


class LogHandle:
    """An open log: `logger` to write with, `close` to take its sinks away again.

    Closing twice is fine; what is logged after closing goes nowhere.
    """

    def __init__(self, logger: Logger, sink_ids: tuple[int, ...]) -> None:
        self.logger = logger
        self._sink_ids = sink_ids

    def close(self) -> None:
        """Flush and remove the sinks that `open_log` added, and no other."""
        sink_ids, self._sink_ids = self._sink_ids, ()
        for sink_id in sink_ids:
            self.logger.remove(sink_id)


def consumer_role(consumer: int) -> str:
    """``consumer-0``: the role of the training process of this consumer."""
    return f"consumer-{consumer}"


def worker_role(consumer: int, worker: int) -> str:
    """``worker-0-3``: the role of worker 3 of consumer 0."""
    return f"worker-{consumer}-{worker}"


def log_config(option: object) -> LogConfig | None:
    """Validate the `logger` option: None, a path prefix, or a dict with path, stdout, level.

    Returns None when nothing is asked for. Raises `ConfigError` for anything else, and for a dict
    that asks for neither a file nor standard output. Touches no file.
    """
    if option is None:
        return None
    if isinstance(option, LogConfig):
        return option
    if isinstance(option, (str, PathLike)):
        return LogConfig(path=_path(option, "logger"))
    if not isinstance(option, Mapping):
        raise ConfigError(
            f"logger={option!r}: give None, a path prefix such as 'logs/run-', or a dict with "
            f"'path', 'stdout' and 'level'."
        )
    unknown = [key for key in option if key not in _KEYS]
    if unknown:
        raise ConfigError(
            f"logger={dict(option)!r}: {unknown[0]!r} is no key of it. It takes 'path' (a prefix), "
            f"'stdout' (True or False) and 'level' (such as 'INFO')."
        )
    path = option.get("path")
    stdout = option.get("stdout", False)
    if not isinstance(stdout, bool):
        raise ConfigError(f"logger['stdout']={stdout!r}: give True or False.")
    if path is None and not stdout:
        raise ConfigError(
            f"logger={dict(option)!r} asks for no output: give 'path' (a prefix) or "
            f"'stdout': True, or logger=None for no log."
        )
    return LogConfig(
        path=None if path is None else _path(path, "logger['path']"),
        stdout=stdout,
        level=_level(option.get("level", "INFO")),
    )


def open_log(config: LogConfig | None, role: str) -> LogHandle:
    """Open the log of this process: ``<path><role>.log``, standard output, or both.

    The file is appended to and its folder is made where it is missing.

    `role` becomes part of a file name: letters, digits, ``.``, ``_``, ``-``; see `consumer_role`
    and `worker_role`. With ``config=None`` nothing is opened (see the module's text).

    Raises `ConfigError` when the file can't be opened, `ValueError` for a role that can't be part
    of a file name.
    """
    if not _ROLE.match(role):
        raise ValueError(f"{role!r} can't be part of a file name")
    if config is None:
        return LogHandle(loguru.logger.bind(swift_loader=role), ())
    token = next(_tokens)
    logger = _own_logger().bind(swift_loader=role, log=token)
    sink_ids = []

    def is_mine(record: Any) -> bool:
        return bool(record["extra"].get("log") == token)

    # Neither `diagnose` (prints the values of the user's variables) nor a lasting failure to write
    # may reach the training: loguru reports the latter on stderr.
    if config.path is not None:
        name = f"{config.path}{role}.log"
        try:
            os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"logger: can't write {name!r} ({error}). Give a prefix in a folder that every "
                f"process of the loader may write to."
            ) from error
        file = _LogFile(Output("logger", name))
        sink_ids.append(
            logger.add(file, level=config.level, format=_FORMAT, diagnose=False, filter=is_mine)
        )
    if config.stdout and sys.stdout is not None:
        sink_ids.append(
            logger.add(
                sys.stdout, level=config.level, format=_FORMAT, diagnose=False, filter=is_mine
            )
        )
    return LogHandle(logger, tuple(sink_ids))


class _LogFile:
    """A sink of loguru's, which neither holds training up nor ends it."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def write(self, text: str) -> None:
        self._output.write(text.encode(errors="backslashreplace"))

    def stop(self) -> None:
        """Loguru calls it when the sink is removed."""
        self._output.close()


@cache
def _own_logger() -> Logger:
    """The public `logger` of a copy of loguru that is nobody else's.

    loguru has one set of sinks for a process, and the user's are in it: our files must not get the
    user's messages, nor the user's sinks ours. So the package is imported once more, by another
    name.
    """
    name = "swift_loader_loguru"
    assert loguru.__spec__ is not None
    assert loguru.__spec__.origin is not None
    spec = spec_from_file_location(
        name, loguru.__spec__.origin, submodule_search_locations=list(loguru.__path__)
    )
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    logger: Logger = module.logger
    logger.remove()  # it begins with one for stderr
    return logger


def _path(value: object, option: str) -> str:
    path = fspath(value) if isinstance(value, (str, PathLike)) else value
    if not isinstance(path, str) or not path or "\0" in path:
        raise ConfigError(f"{option}={value!r}: give the prefix of the log files, as 'logs/run-'.")
    return path


def _level(value: object) -> str | int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and value.upper() in _LEVELS:
        return value.upper()
    raise ConfigError(
        f"logger['level']={value!r}: give one of {', '.join(_LEVELS)}, "
        f"or loguru's number of a level."
    )
