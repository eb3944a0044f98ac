"""What the option ``metrics`` takes, checked: `sinks_of` turns it into `SinkSpec`\\ s.

=======================================  ===========================================================
``"prometheus://127.0.0.1:9400"``        a page for Prometheus; see `prometheus`
``"otlp://127.0.0.1:4318"``              an OpenTelemetry collector, by HTTP; ``otlps://`` by HTTPS
``"tensorboard:runs/loader"``            a folder for TensorBoard
``"wandb"``, ``"mlflow"``                the run that is active when the loader starts
a `SummaryWriter`, a `MeterProvider`     those of the script, by what they can do
a W&B run                                the same
a callable                               it gets a flat ``dict[str, float]``
=======================================  ===========================================================

The libraries are imported when an address names them; one that is missing is a `ConfigError` that
says what to install.
"""

from __future__ import annotations

import importlib
import ipaddress
import os
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import SplitResult, urlsplit

from swift_loader.errors import ConfigError, refuse
from swift_loader.telemetry.sinks.otlp import OpenTelemetry, exporting_provider
from swift_loader.telemetry.sinks.prometheus import Page
from swift_loader.telemetry.sinks.sink import Sink, SinkSpec, Source
from swift_loader.telemetry.sinks.writers import Call, MLflow, TensorBoard, WandB

__all__ = ["sinks_of"]

_FORMS = (
    "give 'prometheus://HOST:PORT', 'otlp://HOST:PORT', 'tensorboard:FOLDER', 'wandb', 'mlflow', a "
    "SummaryWriter, a MeterProvider, a W&B run, a callable that takes a dict, or a list of these"
)


def sinks_of(option: str, value: Any) -> tuple[SinkSpec, ...]:
    """Check the value of `option`: None, one sink or several. Opens nothing.

    Raises `ConfigError`.
    """
    if value is None:
        return ()
    if isinstance(value, (list, tuple)):
        return tuple(_sink_of(option, one) for one in value)
    return (_sink_of(option, value),)


def _sink_of(option: str, value: Any) -> SinkSpec:
    if isinstance(value, SinkSpec):
        return value
    if isinstance(value, str):
        scheme = value.partition(":")[0]
        if scheme not in _SCHEMES:
            refuse(option, value, _FORMS)
        return _SCHEMES[scheme](option, value)
    if callable(getattr(value, "add_scalar", None)):
        return SinkSpec("the SummaryWriter", lambda _: TensorBoard(value, id(value), own=False))
    if callable(getattr(value, "get_meter", None)):
        return SinkSpec("the MeterProvider", lambda source: OpenTelemetry(value, source, own=False))
    if callable(getattr(value, "log", None)) and callable(getattr(value, "define_metric", None)):
        return SinkSpec("the W&B run", lambda _: WandB(value))
    if not callable(value) or isinstance(value, type):
        refuse(option, value, _FORMS)
    return SinkSpec(getattr(value, "__qualname__", "the callable"), lambda _: Call(value))


def _prometheus(option: str, address: str) -> SinkSpec:
    parts = _split(option, address)
    host = parts.hostname or "127.0.0.1"
    if parts.port is None:
        refuse(option, address, "give the port too, as 'prometheus://127.0.0.1:9400'")
    port = parts.port
    _needs(option, address, "prometheus_client", "prometheus")
    _check_host(option, address, host)

    return SinkSpec(address, lambda source: Page(host, port, source), pulls=True)


def _otlp(option: str, address: str) -> SinkSpec:
    parts = _split(option, address)
    if not parts.hostname:
        refuse(option, address, "give the collector's address, as 'otlp://127.0.0.1:4318'")
    _needs(
        option, address, "opentelemetry.exporter.otlp.proto.http.metric_exporter", "opentelemetry"
    )
    scheme = "https" if parts.scheme == "otlps" else "http"
    endpoint = f"{scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1/metrics'}"

    return SinkSpec(
        address, lambda source: OpenTelemetry(exporting_provider(endpoint), source, own=True)
    )


def _tensorboard_folder(option: str, address: str) -> SinkSpec:
    folder = address.partition(":")[2]
    if not folder:
        refuse(option, address, "give the folder too, as 'tensorboard:runs/loader'")
    _needs(option, address, "tensorboard", "tensorboard", own_extra=False)

    def open_writer(source: Source) -> Sink:
        from torch.utils.tensorboard import SummaryWriter

        writer: Callable[..., Any] = SummaryWriter
        place = os.path.realpath(f"{folder}/consumer-{source.number}")
        return TensorBoard(writer(place), place, own=True)

    return SinkSpec(address, open_writer)


def _active_wandb(option: str, address: str) -> SinkSpec:
    _needs(option, address, "wandb", "wandb", own_extra=False)

    def open_run(_: Source) -> Sink:
        run = getattr(sys.modules.get("wandb"), "run", None)
        if run is None:
            raise ConfigError(
                f"{option}='wandb': no run is active; call wandb.init() before start()"
            )
        return WandB(run)

    return SinkSpec(address, open_run)


def _active_mlflow(option: str, address: str) -> SinkSpec:
    _needs(option, address, "mlflow", "mlflow", own_extra=False)

    def open_run(_: Source) -> Sink:
        run = importlib.import_module("mlflow").active_run()
        if run is None:
            raise ConfigError(
                f"{option}='mlflow': no run is active in this thread; call mlflow.start_run() "
                "before start()"
            )
        return MLflow(run.info.run_id)

    return SinkSpec(address, open_run)


_SCHEMES: dict[str, Callable[[str, str], SinkSpec]] = {
    "prometheus": _prometheus,
    "otlp": _otlp,
    "otlps": _otlp,
    "tensorboard": _tensorboard_folder,
    "wandb": _active_wandb,
    "mlflow": _active_mlflow,
}


def _split(option: str, address: str) -> SplitResult:
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError as error:
        refuse(option, address, f"it is no address ({error})")
    if parts.username is not None or parts.password is not None:
        refuse(
            option,
            f"{parts.scheme}://…",
            "leave the password out, logs would show it: OTEL_EXPORTER_OTLP_HEADERS takes one",
        )
    if parts.query or parts.fragment:
        refuse(option, address, "leave out what follows the path")
    return parts


def _check_host(option: str, address: str, host: str) -> None:
    if host == "localhost":
        return
    try:
        ipaddress.ip_address(host)
    except ValueError:
        refuse(
            option,
            address,
            "give the number of an address of this machine: 127.0.0.1, or 0.0.0.0 for everybody",
        )


def _needs(option: str, address: str, module: str, package: str, *, own_extra: bool = True) -> None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        what = f"'swift-loader[{package}]'" if own_extra else package
        raise ConfigError(f"{option}={address!r} needs a package: pip install {what}") from error
