"""Sinks, each against the real thing: what arrives there, and that none holds anybody up."""

from __future__ import annotations

import importlib.util
import math
import shutil
import socket
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import loguru
import pytest

from swift_loader.errors import ConfigError
from swift_loader.telemetry.figures import FIGURES, Reading, flat
from swift_loader.telemetry.metrics import BatchTimes, Meter
from swift_loader.telemetry.readings import loader_readings
from swift_loader.telemetry.sinks.addresses import sinks_of
from swift_loader.telemetry.sinks.pump import open_sinks
from swift_loader.telemetry.sinks.sink import Source
from swift_loader.telemetry.sinks.writers import mlflow_key

EVIL = 'Images\x1b[2J"\n<b>\udcff'


def needs(module: str) -> None:
    if importlib.util.find_spec(module.split(".")[0]) is None:
        pytest.skip(f"{module} is not installed")


def meter_with_batches(nb_batches: int = 100) -> Meter:
    meter = Meter(0)
    meter.worker_started(0, None)
    meter.epoch_begins(4, 0.0)
    for k in range(nb_batches):
        meter.add(
            BatchTimes(0, 4, k, 32, 1000, 0.01, 0.002, 0.001, 0.0, 0.0, 0.02, 3, (k + 1) / 10)
        )
    meter.skipped(7)
    return meter


def source_of(meter: Meter, name: str = "Images") -> Source:
    return Source(name, lambda: loader_readings(meter.snapshot()))


@pytest.fixture
def open_sink() -> Iterator[Callable[..., Any]]:
    """Opens sinks for a source; all of them are closed at the end."""
    opened = []

    def open_now(value: Any, source: Source | None = None, interval_s: float = 0.05) -> Any:
        specs = sinks_of("metrics", value)
        pumps = open_sinks(
            specs, source or source_of(meter_with_batches()), loguru.logger, interval_s
        )
        opened.append(pumps)
        return pumps

    yield open_now
    for pumps in opened:
        pumps.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
        return text


# ---- the figures


def test_every_figure_of_a_loader_is_in_the_table_and_finite() -> None:
    readings = loader_readings(meter_with_batches().snapshot())
    assert {reading.name for reading in readings} <= set(FIGURES)
    assert all(math.isfinite(reading.value) for reading in readings)
    told = flat(readings)
    assert told["swift_loader_batches_total"] == 100
    assert told["swift_loader_samples_total"] == 3200
    assert told["swift_loader_epoch"] == 4
    assert told["swift_loader_wait_seconds_total"] == pytest.approx(99 * 0.02)
    assert told["swift_loader_stage_seconds_total/fetch"] == pytest.approx(1.0)
    assert told["swift_loader_recent_wait_ratio"] == pytest.approx(0.2)
    assert told["swift_loader_recent_batches_per_second"] == pytest.approx(10)
    assert told["swift_loader_skipped_samples_total"] == 1
    assert not any("worker_batches" in name for name in told)  # one for each worker


def test_names_and_units_follow_the_conventions_of_prometheus() -> None:
    for name, figure in FIGURES.items():
        assert name == name.lower()
        assert name.startswith("swift_loader_")
        assert name.endswith("_total") == (figure.kind == "counter"), name
        assert figure.text.endswith("."), name
        if figure.unit in ("seconds", "bytes", "ratio"):
            assert figure.unit in name, name


def test_another_part_adds_figures_of_its_own() -> None:
    meter = meter_with_batches()
    meter.also(lambda: [Reading("swift_loader_workers", 3.0)])
    assert meter.snapshot().others == (Reading("swift_loader_workers", 3.0),)
    assert flat(loader_readings(meter.snapshot()))["swift_loader_workers"] == 3


# ---- what the option takes


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("graphite://x", "prometheus://HOST:PORT"),
        (7, "callable"),
        (dict, "callable"),
        ("prometheus://127.0.0.1", "give the port too"),
        ("prometheus://127.0.0.1:99999", "no address"),
        ("prometheus://node:9400", "127.0.0.1"),
        ("otlp://", "collector's address"),
        ("tensorboard:", "give the folder too"),
        (["wandb", "nonsense"], "nonsense"),
    ],
)
def test_a_wrong_value_is_refused_with_the_fix(value: Any, says: str) -> None:
    needs("prometheus_client")
    needs("opentelemetry")
    needs("wandb")
    with pytest.raises(ConfigError, match="metrics=") as caught:
        sinks_of("metrics", value)
    assert says in str(caught.value)


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        sinks_of("metrics", "otlp://me:hunter2@collector:4318")
    assert "hunter2" not in str(caught.value)
    assert "OTEL_EXPORTER_OTLP_HEADERS" in str(caught.value)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"pip install 'swift-loader\[prometheus\]'"):
        sinks_of("metrics", "prometheus://127.0.0.1:0")


# ---- callables, and those that misbehave


def test_a_callable_gets_figures_each_interval_and_the_last_ones_at_the_end(open_sink) -> None:
    meter = meter_with_batches()
    got: list[dict[str, float]] = []
    twice = threading.Event()

    def take(figures: dict[str, float]) -> None:
        got.append(figures)
        if len(got) == 2:
            twice.set()

    pumps = open_sink(take, source_of(meter))
    assert twice.wait(20)
    meter.skipped(8)
    pumps.close()
    assert got[-1]["swift_loader_skipped_samples_total"] == 2
    nb = len(got)
    time.sleep(0.15)
    assert len(got) == nb


def test_a_sink_that_fails_is_tried_again_after_one_warning(open_sink) -> None:
    calls = threading.Semaphore(0)
    failing = True

    def take(figures: dict[str, float]) -> None:
        calls.release()
        if failing:
            raise ConnectionError("no route")

    with pytest.warns(RuntimeWarning, match="no route") as warned:  # noqa: PT031
        pumps = open_sink(take)
        for _ in range(4):
            assert calls.acquire(timeout=20)
        failing = False
        assert calls.acquire(timeout=20)
        pumps.close()
    assert len(warned) == 1


def test_a_sink_that_hangs_holds_up_neither_the_others_nor_the_end_for_long(
    open_sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swift_loader.telemetry.sinks.pump._CLOSE_S", 0.3)
    hangs, entered, others = threading.Event(), threading.Event(), threading.Semaphore(0)

    def hang(figures: dict[str, float]) -> None:
        entered.set()
        hangs.wait(60)

    pumps = open_sink([hang, lambda figures: others.release()])
    assert entered.wait(20)
    for _ in range(3):
        assert others.acquire(timeout=20)
    began_s = time.monotonic()
    with pytest.warns(RuntimeWarning, match="hang does not return"):
        pumps.close()
    assert time.monotonic() - began_s < 5
    hangs.set()


def test_a_sink_that_can_not_open_closes_those_before_it() -> None:
    needs("prometheus_client")
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        specs = sinks_of("metrics", [lambda figures: None, f"prometheus://127.0.0.1:{port}"])
        with pytest.raises(ConfigError, match="can't listen there"):
            open_sinks(specs, source_of(meter_with_batches()), loguru.logger)
    assert not any("<lambda>" in thread.name for thread in threading.enumerate())


# ---- Prometheus


def parsed(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    from prometheus_client.parser import text_string_to_metric_families

    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_own_parser_reads_the_page(open_sink) -> None:
    needs("prometheus_client")
    port = free_port()
    pumps = open_sink(f"prometheus://127.0.0.1:{port}", source_of(meter_with_batches(), EVIL))
    text = get(f"http://127.0.0.1:{port}/metrics")
    assert "\x1b" not in text
    found = parsed(text)
    name = 'Images\\x1b[2J"\\n<b>\\udcff'
    assert found["swift_loader_batches_total", (("loader", name),)] == 100
    stage = (("loader", name), ("stage", "fetch"))
    assert found["swift_loader_stage_seconds_total", stage] == pytest.approx(1.0)
    worker = (("loader", name), ("worker", "0"))
    assert found["swift_loader_worker_batches_total", worker] == 100
    pumps.close()
    with pytest.raises(urllib.error.URLError):
        get(f"http://127.0.0.1:{port}/metrics")


def test_loaders_of_a_process_share_a_page(open_sink) -> None:
    needs("prometheus_client")
    address = f"prometheus://127.0.0.1:{free_port()}"
    train = open_sink(address, source_of(meter_with_batches(10)))
    open_sink(address, source_of(meter_with_batches(20)))
    url = address.replace("prometheus", "http") + "/metrics"
    found = parsed(get(url))
    assert found["swift_loader_batches_total", (("loader", "Images"),)] == 10
    assert found["swift_loader_batches_total", (("loader", "Images 2"),)] == 20
    train.close()
    assert ("swift_loader_batches_total", (("loader", "Images"),)) not in parsed(get(url))


def test_each_consumer_of_a_machine_has_a_port_of_its_own(open_sink) -> None:
    needs("prometheus_client")
    port = free_port()
    meter = meter_with_batches()
    source = Source("Images", lambda: loader_readings(meter.snapshot()), number=1)
    try:
        open_sink(f"prometheus://127.0.0.1:{port}", source)
    except ConfigError:
        pytest.skip("another process has just taken the port after the free one")
    assert "swift_loader_batches_total" in get(f"http://127.0.0.1:{port + 1}/metrics")


@pytest.mark.timeout(90)
def test_a_prometheus_server_scrapes_it(open_sink, tmp_path) -> None:
    needs("prometheus_client")
    server = shutil.which("prometheus")
    if server is None:
        pytest.skip("no Prometheus server is installed (Debian: prometheus)")
    port, own = free_port(), free_port()
    open_sink(f"prometheus://127.0.0.1:{port}")
    (tmp_path / "prometheus.yml").write_text(
        "scrape_configs: [{job_name: loader, scrape_interval: 200ms, scrape_timeout: 200ms, "
        f"static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}]\n"
    )
    query = f"http://127.0.0.1:{own}/api/v1/query?query=swift_loader_batches_total"
    with subprocess.Popen(
        [
            server,
            f"--config.file={tmp_path}/prometheus.yml",
            f"--storage.tsdb.path={tmp_path}/data",
            f"--web.listen-address=127.0.0.1:{own}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            deadline_s = time.monotonic() + 60
            answer = ""
            while '"100"' not in answer:
                assert time.monotonic() < deadline_s, answer
                time.sleep(0.1)
                try:
                    answer = get(query)
                except OSError:
                    continue
            assert '"loader":"Images"' in answer
        finally:
            process.kill()


# ---- OpenTelemetry


class Collector(BaseHTTPRequestHandler):
    """Takes what an exporter sends, as a collector does."""

    bodies: list[bytes]
    came: threading.Event
    status = 200

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            import gzip

            body = gzip.decompress(body)
        type(self).bodies.append(body)
        self.send_response(type(self).status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.end_headers()
        type(self).came.set()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is said."""


@pytest.fixture
def collector() -> Iterator[tuple[int, type[Collector]]]:
    needs("opentelemetry")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    kind = type("OneCollector", (Collector,), {"bodies": [], "came": threading.Event()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1], kind
    server.shutdown()
    server.server_close()
    thread.join()


def points_of(body: bytes) -> dict[str, list[tuple[dict[str, Any], float]]]:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

    request = ExportMetricsServiceRequest.FromString(body)
    found: dict[str, list[tuple[dict[str, Any], float]]] = {}
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                data = metric.sum if metric.HasField("sum") else metric.gauge
                for point in data.data_points:
                    labels = {a.key: a.value.string_value for a in point.attributes}
                    value = point.as_double or float(point.as_int)
                    found.setdefault(metric.name, []).append((labels, value))
    return found


def test_a_collector_gets_figures_by_otlp(open_sink, collector) -> None:
    port, kind = collector
    pumps = open_sink(f"otlp://127.0.0.1:{port}", source_of(meter_with_batches(), EVIL))
    assert kind.came.wait(30)
    pumps.close()
    found = points_of(kind.bodies[0])
    [(labels, value)] = found["swift_loader_batches_total"]
    assert value == 100
    assert labels["loader"] == 'Images\\x1b[2J"\\n<b>\\udcff'
    stages = {labels["stage"]: value for labels, value in found["swift_loader_stage_seconds_total"]}
    assert stages["fetch"] == pytest.approx(1.0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_collector_that_refuses_is_told_of(open_sink, collector) -> None:
    port, kind = collector
    kind.status = 400
    with pytest.warns(RuntimeWarning, match="did not take the figures"):  # noqa: PT031
        pumps = open_sink(f"otlp://127.0.0.1:{port}")
        assert kind.came.wait(30)
        pumps.close()


def test_a_meter_provider_of_the_script_collects_by_itself(open_sink) -> None:
    needs("opentelemetry")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    pumps = open_sink(provider, interval_s=60)
    metrics = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    values = {metric.name: next(iter(metric.data.data_points)).value for metric in metrics}
    assert values["swift_loader_batches_total"] == 100
    pumps.close()
    left = reader.get_metrics_data()  # a closed loader says nothing more
    assert left is None or not left.resource_metrics[0].scope_metrics[0].metrics
    provider.shutdown()


# ---- TensorBoard, Weights & Biases, MLflow


def tensorboard_values(folder: Any) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboards_reader_reads_what_was_written(open_sink, tmp_path) -> None:
    needs("tensorboard")
    open_sink(f"tensorboard:{tmp_path}", interval_s=60).close()
    found = tensorboard_values(tmp_path / "consumer-0")
    assert found["swift_loader/samples_total"] == [(100, 3200.0)]
    [(_, ratio)] = found["swift_loader/recent_wait_ratio"]
    assert ratio == pytest.approx(0.2)


def test_a_summary_writer_of_the_script_stays_open(open_sink, tmp_path) -> None:
    needs("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path) as writer:
        open_sink(writer, interval_s=60).close()
        writer.add_scalar("loss", 1.0, 1)
    assert set(tensorboard_values(tmp_path)) >= {"loss", "swift_loader/batches_total"}


@pytest.mark.parametrize("own", [True, False])
def test_two_loaders_in_one_place_keep_their_figures_apart(open_sink, tmp_path, own) -> None:
    needs("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    folder = tmp_path / "consumer-0"
    with SummaryWriter(folder) as writer:
        place = f"tensorboard:{tmp_path}" if own else writer
        training = open_sink(place, interval_s=60)
        for _ in range(2):  # it has the same name each time
            open_sink(place, interval_s=60).close()
        training.close()
        open_sink(place, interval_s=60).close()  # the first name is free again
    found = tensorboard_values(folder)
    assert len(found["swift_loader/samples_total"]) == 2
    assert len(found["swift_loader_2/samples_total"]) == 2
    assert not [tag for tag in found if tag.startswith("swift_loader_3")]


def wandb_records(data: bytes) -> Iterator[bytes]:
    """Of a .wandb file: seven bytes, then LevelDB's log format (its doc/log_format.md)."""
    at, parts = 7, []
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # the rest of a block holds no header
            at += 32768 - at % 32768
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        parts.append(data[at + 7 : at + 7 + size])
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield b"".join(parts)
            parts = []


@pytest.mark.timeout(120)
def test_wandb_keeps_figures_in_its_offline_files(open_sink, tmp_path, monkeypatch) -> None:
    needs("wandb")
    import wandb
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with pytest.raises(ConfigError, match=r"call wandb.init\(\)"):
        open_sink("wandb")
    run = wandb.init(project="tests", dir=str(tmp_path))
    try:
        run.log({"loss": 1.0})
        pumps = open_sink(["wandb", run], interval_s=60)
        pumps.close()
        assert run.step == 1  # the script's own count
        run.log({"loss": 0.5})
    finally:
        run.finish()
        wandb.teardown()
    [file] = tmp_path.rglob("*.wandb")
    values: dict[str, str] = {}
    for data in wandb_records(file.read_bytes()):
        for item in wandb_internal_pb2.Record.FromString(data).history.item:
            values["/".join(item.nested_key) or item.key] = item.value_json
    assert float(values["swift_loader/samples_total"]) == 3200
    assert float(values["loss"]) == 0.5


@pytest.mark.timeout(120)
def test_mlflow_keeps_figures_of_the_run_that_was_active(open_sink, tmp_path, monkeypatch) -> None:
    needs("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    import mlflow

    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    try:
        with pytest.raises(ConfigError, match=r"call mlflow.start_run\(\)"):
            open_sink("mlflow")
        with mlflow.start_run() as run:
            open_sink("mlflow", interval_s=60).close()
        told = mlflow.get_run(run.info.run_id).data.metrics
    finally:
        mlflow.set_tracking_uri(before)
    assert told["swift_loader_samples_total"] == 3200
    assert told["swift_loader_stage_seconds_total/fetch"] == pytest.approx(1.0)


def test_a_source_with_a_strange_name_has_a_key_that_mlflow_takes() -> None:
    assert mlflow_key('x/a"\n{é}') == "x/a_____"
