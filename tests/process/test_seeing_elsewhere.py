"""Figures of an endpoint and of a producer, scraped as Prometheus does."""

from __future__ import annotations

import socket
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from swift_loader import ConfigError, SwiftLoader
from swift_loader.cli import main
from swift_loader.sharing import TensorConsumer, TensorProducer
from tests import datasets
from tests.process.remote.endpoints import RunningEndpoint

pytestmark = pytest.mark.timeout(120)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def scraped(port: int) -> dict[str, float]:
    parser = pytest.importorskip("prometheus_client.parser")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        sample.name: sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def within(
    seconds: float, port: int, holds: Callable[[dict[str, float]], bool]
) -> dict[str, float]:
    deadline_s = time.monotonic() + seconds
    while not holds(found := scraped(port)):
        assert time.monotonic() < deadline_s, found
        time.sleep(0.2)
    return found


@pytest.mark.usefixtures("shared_zygote")
def test_an_endpoint_is_scraped() -> None:
    pytest.importorskip("prometheus_client")
    pytest.importorskip("zmq")
    port = free_port()
    with RunningEndpoint(metrics=f"prometheus://127.0.0.1:{port}") as endpoint:
        address = endpoint.address
        assert scraped(port)["swift_loader_endpoint_workers"] == 2
        options = {"remote_workers": address, "worker_per_consumer": 0}
        with SwiftLoader(datasets.Numbers, {"n": 64}, 4, **options) as loader:
            assert sum(1 for _ in loader) == 16
            name = "swift_loader_endpoint_session_batches_total"
            found = within(30, port, lambda found: found.get(name, 0) >= 16)
            assert found["swift_loader_endpoint_sessions"] == 1


def test_a_wrong_place_ends_the_command_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--metrics", "graphite://x"]) == 1
    told = capsys.readouterr().err
    assert "--metrics='graphite://x'" in told
    assert told.count("\n") == 1


def test_a_producer_is_scraped(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    name, port = f"seen-{tmp_path.name[-20:]}", free_port()
    with TensorProducer(
        list(range(12)), name, metrics=f"prometheus://127.0.0.1:{port}"
    ) as producer:
        assert scraped(port)["swift_loader_producer_consumers"] == 0
        consumer = TensorConsumer(name, connect_timeout=30)
        steps = iter(producer)
        next(steps)
        assert next(iter(consumer)) == 0
        found = within(30, port, lambda found: found["swift_loader_producer_consumers"] == 1)
        assert "swift_loader_producer_consumer_batches_total" in found
        consumer.close()


def test_a_producer_refuses_a_wrong_place() -> None:
    with pytest.raises(ConfigError, match="metrics='graphite'"):
        TensorProducer([1, 2], 5599, metrics="graphite")
