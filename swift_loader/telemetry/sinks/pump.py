"""Gives figures to sinks: a thread a sink, so that one that hangs holds up nobody else.

The thread sleeps until the next interval, reads the figures, and writes them. It never holds a lock
that the training loop takes. A sink that raises is tried again at the next interval, after one
warning. One that does not return at the end is left behind: its thread is a daemon, the only one
that may outlive its loader, since Python can't end it.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from swift_loader.telemetry.sinks.sink import Sink, SinkSpec, Source

if TYPE_CHECKING:
    from loguru import Logger

__all__ = ["Pumps", "open_sinks"]

INTERVAL_S = 5.0
_CLOSE_S = 5.0  # for all sinks together


def open_sinks(
    specs: Sequence[SinkSpec], source: Source, logger: Logger, interval_s: float | None = None
) -> Pumps:
    """Open all of `specs`. Raises `ConfigError`, with those that are open closed again."""
    pumps = Pumps(logger)
    try:
        for spec in specs:
            pumps.add(spec, source, INTERVAL_S if interval_s is None else interval_s)
    except BaseException:
        pumps.close()
        raise
    return pumps


class Pumps:
    """All sinks of one loader."""

    def __init__(self, logger: Logger) -> None:
        self._logger = logger
        self._pumps: list[_Pump] = []

    def add(self, spec: SinkSpec, source: Source, interval_s: float) -> None:
        """Open one more."""
        self._pumps.append(_Pump(spec, source, interval_s, self._logger))

    @property
    def in_own_thread(self) -> bool:
        """Whether the caller is one of the sinks."""
        return any(pump.thread is threading.current_thread() for pump in self._pumps)

    def close(self) -> None:
        """Have each sink write a last time and close; waits 5 s at most. Twice is fine."""
        pumps, self._pumps = self._pumps, []
        for pump in pumps:
            pump.end()
        deadline_s = time.monotonic() + _CLOSE_S
        for pump in pumps:
            if pump.thread is threading.current_thread():  # the collector has run in it
                continue
            pump.thread.join(max(0.0, deadline_s - time.monotonic()))
            if pump.thread.is_alive():
                warnings.warn(
                    f"metrics: {pump.name} does not return from a call; it is left behind, and the "
                    "last figures may be missing there",
                    RuntimeWarning,
                    stacklevel=2,
                )


class _Pump:
    def __init__(self, spec: SinkSpec, source: Source, interval_s: float, logger: Logger) -> None:
        self.name = spec.name
        self._pulls = spec.pulls
        self._sink: Sink = spec.open(source)
        self._source = source
        self._interval_s = interval_s
        self._logger = logger
        self._ending = threading.Event()
        self._failing = False
        self.thread = threading.Thread(
            target=self._run, name=f"swift_loader-metrics {spec.name}", daemon=True
        )
        self.thread.start()

    def end(self) -> None:
        self._ending.set()

    def _run(self) -> None:
        if self._pulls:
            self._ending.wait()
        else:
            while not self._ending.wait(self._interval_s):
                self._write()
            self._write()
        try:
            self._sink.close()
        except Exception as error:  # noqa: BLE001 - it may be anybody's code
            self._say(error)

    def _write(self) -> None:
        try:
            self._sink.write(self._source.read())
        except Exception as error:  # noqa: BLE001 - it may be anybody's code, or network
            self._say(error)
        else:
            if self._failing:
                self._failing = False
                self._logger.info("metrics: {} works again", self.name)

    def _say(self, error: Exception) -> None:
        self._logger.warning("metrics: {} failed: {!r}", self.name, error)
        if not self._failing:
            self._failing = True
            warnings.warn(
                f"metrics: {self.name} failed, and is tried again at each interval: {error!r}",
                RuntimeWarning,
                stacklevel=2,
            )
