"""An endpoint's figures for sinks: those of its last tick, as sinks have threads of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from swift_loader.telemetry.figures import Reading
from swift_loader.telemetry.sinks.pump import Pumps, open_sinks
from swift_loader.telemetry.sinks.sink import SinkSpec, Source

__all__ = ["Figures", "readings_of"]


class Figures:
    """Part of an endpoint. `facts` are those of `swift-loader status`; its own thread asks them."""

    def __init__(self, facts: Callable[[], dict[str, Any]]) -> None:
        self._facts = facts
        self._readings: list[Reading] = []
        self._sinks: Pumps | None = None

    def open(self, sinks: Sequence[SinkSpec], address: str, logger: Any) -> None:
        """Open what was asked for. Raises `ConfigError`."""
        if sinks:
            self._readings = readings_of(self._facts())
            self._sinks = open_sinks(sinks, Source(address, lambda: self._readings), logger)

    def tick(self) -> None:
        """Take the figures of now."""
        if self._sinks is not None:
            self._readings = readings_of(self._facts())

    def close(self) -> None:
        """Twice is fine."""
        if self._sinks is not None:
            self._sinks.close()


def readings_of(facts: dict[str, Any]) -> list[Reading]:
    """The facts of an endpoint as figures."""
    sessions = facts["sessions"]
    readings = [
        Reading("swift_loader_endpoint_workers", facts["workers"]),
        Reading("swift_loader_endpoint_workers_running", facts["workers_running"]),
        Reading("swift_loader_endpoint_sessions", len(sessions)),
        Reading("swift_loader_endpoint_sessions_total", facts["sessions_so_far"]),
        Reading("swift_loader_endpoint_kept_out_total", facts["kept_out"]),
        Reading("swift_loader_endpoint_dataset_bytes", facts["datasets_bytes"]),
    ]
    for session in sessions:
        of = f"{session['session']} {session['dataset']}"
        readings += [
            Reading("swift_loader_endpoint_session_batches_total", session["batches"], of),
            Reading("swift_loader_endpoint_session_sent_bytes_total", session["bytes"], of),
            Reading("swift_loader_endpoint_session_waiting", session["orders_waiting"], of),
        ]
    return readings
