"""OpenTelemetry: ``otlp://host:4318``, or a `MeterProvider` of the script's."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

from swift_loader.telemetry.figures import FIGURES, Figure, Reading
from swift_loader.telemetry.printable import printable
from swift_loader.telemetry.sinks.groups import Group
from swift_loader.telemetry.sinks.sink import Source

__all__ = ["OpenTelemetry", "exporting_provider"]

_TIMEOUT_S = 3.0
_FRESH_S = 1.0  # the instruments of one collection are asked one after the other


class OpenTelemetry:
    """Observable instruments on a provider, which collects when `write` or the provider says so.

    A provider of the script's collects by its own reader and clock, so `write` does nothing then.
    """

    def __init__(self, provider: Any, source: Source, *, own: bool) -> None:
        from opentelemetry.metrics import Observation

        self._provider = provider
        self._own = own
        self._source = source
        self._open = True
        self._readings: Sequence[Reading] = ()
        self._read_at_s = -inf
        self._observation = Observation
        name = printable(source.name)
        self._group = Group(("opentelemetry", name, source.number))
        self._labels: dict[str, str | int] = {
            "loader": name if self._group.number == 1 else f"{name} {self._group.number}",
            "consumer": source.number,
        }
        meter = provider.get_meter("swift_loader")
        for figure in FIGURES.values():
            make = (
                meter.create_observable_counter
                if figure.kind == "counter"
                else meter.create_observable_gauge
            )
            make(figure.name, [self._observer(figure)], figure.unit, figure.text)

    def write(self, readings: Sequence[Reading]) -> None:
        self._readings, self._read_at_s = readings, time.monotonic()
        if self._own:
            self._provider.force_flush(int(_TIMEOUT_S * 1000))
            self._provider.check()

    def close(self) -> None:
        self._open = False
        self._group.close()
        if self._own:
            self._provider.shutdown(timeout_millis=_TIMEOUT_S * 1000)

    def _observer(self, figure: Figure) -> Any:
        def observe(options: object) -> Iterable[Any]:
            if not self._open:  # a provider of the script's knows us until its end
                return
            for name, value, of in self._current():
                if name == figure.name:
                    labels = dict(self._labels)
                    if figure.label:
                        labels[figure.label] = printable(of)
                    yield self._observation(value, labels)

        return observe

    def _current(self) -> Sequence[Reading]:
        if time.monotonic() - self._read_at_s > _FRESH_S:
            self._readings, self._read_at_s = self._source.read(), time.monotonic()
        return self._readings


def exporting_provider(endpoint: str) -> Any:
    """A provider that sends to an OTLP collector over HTTP, when it is flushed; `check` after it.

    Headers, certificates and compression are those of the environment (``OTEL_EXPORTER_OTLP_*``).
    """
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricExportResult, PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource

    class Exporter(OTLPMetricExporter):
        result = MetricExportResult.SUCCESS

        def export(self, *args: Any, **kwargs: Any) -> MetricExportResult:
            self.result = super().export(*args, **kwargs)
            return self.result

    class Provider(MeterProvider):
        def check(self) -> None:
            """Raise `ConnectionError` where the last flush did not arrive: nobody else tells."""
            if exporter.result is not MetricExportResult.SUCCESS:
                raise ConnectionError(f"the collector at {endpoint} did not take the figures")

    exporter = Exporter(endpoint=endpoint, timeout=_TIMEOUT_S)
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=inf)
    resource = Resource.create({"service.name": "swift_loader"})
    return Provider(metric_readers=[reader], resource=resource, shutdown_on_exit=False)
