"""The text form for Prometheus, read back by its own rules."""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_loader.telemetry.metrics import BatchTimes, Meter
from swift_loader.telemetry.prometheus import Metric, exposition, loader_metrics

SAMPLE = re.compile(r'([a-zA-Z_:][\w:]*)(?:\{((?:\w+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)\Z')
LABEL = re.compile(r'(\w+)="((?:[^"\\\n]|\\.)*)"')
UNESCAPE = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def read(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    out = {}
    for line in text.split("\n")[:-1]:
        if line.startswith("# "):
            continue
        name, labels, value = SAMPLE.match(line).groups()
        pairs = tuple(
            (key, re.sub(r"\\.", lambda m: UNESCAPE[m.group()], text))
            for key, text in LABEL.findall(labels or "")
        )
        out[name, pairs] = float(value)
    return out


@given(st.text(st.characters(exclude_categories=["Cs"])), st.floats())
def test_every_label_and_value_comes_back(label, value):
    text = exposition([Metric("a_total", "counter", label, (({"l": label}, value),))])
    ((key, back),) = read(text).items()
    assert key == ("a_total", (("l", label),))
    assert back == value or (back != back and value != value)


def test_the_form_is_the_documented_one():
    text = exposition(
        [
            Metric("up", "gauge", "Is it up?\nReally \\ so", (({}, 1),)),
            Metric("seen_total", "counter", "Seen.", (({"w": "0"}, 5), ({"w": "1"}, 2.5))),
            Metric("nothing", "gauge", "No values."),
        ]
    )
    assert text == (
        "# HELP up Is it up?\\nReally \\\\ so\n"
        "# TYPE up gauge\n"
        "up 1\n"
        "# HELP seen_total Seen.\n"
        "# TYPE seen_total counter\n"
        'seen_total{w="0"} 5\n'
        'seen_total{w="1"} 2.5\n'
    )


@pytest.mark.parametrize(
    "metrics",
    [
        [Metric("a b", "gauge", "", (({}, 1),))],
        [Metric("a\n", "gauge", "", (({}, 1),))],
        [Metric("a", "gauge", "", (({"__b": "c"}, 1),))],
        [Metric("a", "gauge", "", (({"b-c": "c"}, 1),))],
        [Metric("a", "gauge", ""), Metric("a", "gauge", "")],
    ],
)
def test_what_prometheus_does_not_take_is_refused(metrics):
    with pytest.raises(ValueError, match=r"Prometheus|twice"):
        exposition(metrics)


def test_a_loader_is_told_in_numbers():
    meter = Meter(3)
    meter.worker_started(0, os.getpid())
    meter.worker_started(1, None)
    meter.epoch_begins(0, 0.0)
    for k in range(10):
        meter.add(BatchTimes(k % 2, 0, k, 32, 1000, 0.25, 0.1, 0.0, 0.0, 0.0, 0.0, 0.5, 2, k + 1.0))
    meter.skipped(5)
    values = read(exposition(loader_metrics(meter.snapshot())))
    consumer = ("consumer", "3")
    assert values["swift_loader_batches_total", (consumer,)] == 10
    assert values["swift_loader_skipped_samples_total", (consumer,)] == 1
    assert values["swift_loader_stage_seconds_total", (consumer, ("stage", "fetch"))] == 2.5
    assert values["swift_loader_worker_batches_total", (consumer, ("worker", "1"))] == 5
    assert values["swift_loader_worker_resident_bytes", (consumer, ("worker", "0"))] > 0
    assert ("swift_loader_worker_resident_bytes", (consumer, ("worker", "1"))) not in values
