"""``prometheus://127.0.0.1:9400``: a page that a Prometheus server scrapes.

All loaders of a process that name one address share a server; the label ``loader`` tells them
apart. Consumer ``c`` of a machine listens at the port plus ``c``: each is a process of its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from swift_loader.errors import ConfigError
from swift_loader.telemetry.figures import FIGURES, Reading
from swift_loader.telemetry.printable import printable
from swift_loader.telemetry.sinks.sink import Source

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["Page"]

_lock = threading.Lock()
_servers: dict[tuple[str, int], _Server] = {}
# A fork has no thread that would serve: it opens its own page, or hears that the port is taken.
os.register_at_fork(after_in_child=_servers.clear)


class Page:
    """A `Sink` that is asked by its server."""

    def __init__(self, host: str, port: int, source: Source) -> None:
        self._address = (host, port + source.number if port else 0)
        with _lock:
            server = _servers.get(self._address) if port else None
            if server is None:
                server = _Server(*self._address)
                if port:
                    _servers[self._address] = server
            self._server = server
            self._name = server.add(printable(source.name), source)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.port

    def write(self, readings: Sequence[Reading]) -> None:
        """It fetches them by itself."""

    def close(self) -> None:
        """The server ends with its last loader."""
        with _lock:
            self._server.remove(self._name)
            if not self._server.sources:
                _servers.pop(self._address, None)
                self._server.close()


class _Server:
    def __init__(self, host: str, port: int) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        self.sources: dict[str, Source] = {}
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        try:
            self._http, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise ConfigError(
                f"metrics='prometheus://{host}:{port}': can't listen there ({error}). Give a free "
                "port; consumer c of a run takes the port plus c"
            ) from error
        self.port = int(self._http.server_address[1])

    def add(self, name: str, source: Source) -> str:
        """Under `name`, or ``name 2`` where there is one."""
        free, number = name, 1
        while free in self.sources:
            number += 1
            free = f"{name} {number}"
        self.sources = {**self.sources, free: source}  # anew: a scrape may be under way
        return free

    def remove(self, name: str) -> None:
        self.sources = {each: source for each, source in self.sources.items() if each != name}

    def describe(self) -> Iterable[Metric]:
        """Nothing is told ahead: names come with the figures."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """For `prometheus_client`, at each scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}
        for name, source in self.sources.items():
            for reading in source.read():
                figure = FIGURES[reading.name]
                labels = ["loader", figure.label] if figure.label else ["loader"]
                if figure.name not in families:
                    kind = CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily
                    families[figure.name] = kind(figure.name, figure.text, labels=labels)
                of = [name, printable(reading.of)] if figure.label else [name]
                families[figure.name].add_metric(of, float(reading.value))
        return families.values()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
