"""The text form that a Prometheus server reads, from plain counters and gauges. Pure functions.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (version 0.0.4). Send it with
the header ``Content-Type:`` `CONTENT_TYPE`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from swift_loader.telemetry.stats import LoaderStats

__all__ = ["CONTENT_TYPE", "Metric", "exposition", "loader_metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")


@dataclass(frozen=True)
class Metric:
    """One metric and its values: `samples` is pairs of labels and value (no labels: ``{}``).

    A counter's name ends in ``_total``; names carry their unit (``_seconds``, ``_bytes``).
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    samples: tuple[tuple[Mapping[str, str], float], ...] = field(default=())


def exposition(metrics: Iterable[Metric]) -> str:
    """The page to answer with. Metrics without values are left out.

    Raises `ValueError` for a name that Prometheus does not take, or that comes twice.
    """
    lines: list[str] = []
    seen: set[str] = set()
    for metric in metrics:
        if not _NAME.match(metric.name):
            raise ValueError(f"{metric.name!r} is no name of a Prometheus metric")
        if metric.name in seen:
            raise ValueError(f"the metric {metric.name!r} comes twice; give it both samples")
        seen.add(metric.name)
        if not metric.samples:
            continue
        help_text = metric.help.replace("\\", r"\\").replace("\n", r"\n")
        lines.append(f"# HELP {metric.name} {help_text}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for labels, value in metric.samples:
            lines.append(f"{metric.name}{_labels(labels)} {_number(value)}")
    return "".join(f"{line}\n" for line in lines)


def loader_metrics(stats: LoaderStats) -> list[Metric]:
    """One consumer's loader, labelled with the consumer, the stage and the worker."""
    consumer = {"consumer": str(stats.consumer)}
    workers = [({**consumer, "worker": str(row.worker)}, row) for row in stats.workers]

    def one(name: str, kind: Literal["counter", "gauge"], text: str, value: float) -> Metric:
        return Metric(f"swift_loader_{name}", kind, text, ((consumer, value),))

    return [
        one("batches_total", "counter", "Batches delivered.", stats.batches),
        one("samples_total", "counter", "Samples delivered.", stats.samples),
        one("bytes_total", "counter", "Bytes of the delivered batches.", stats.nbytes),
        one("elapsed_seconds_total", "counter", "Time within epochs.", stats.elapsed_s),
        one("startup_seconds", "gauge", "Wait for the very first batch.", stats.startup_s),
        one("queue_depth_mean", "gauge", "Batches ready when asked.", stats.queue_depth_mean),
        one("restarts_total", "counter", "Workers restarted.", stats.restarts),
        one("skipped_samples_total", "counter", "Samples left out.", stats.nb_skipped),
        one("replaced_samples_total", "counter", "Samples replaced.", stats.nb_replaced),
        Metric(
            "swift_loader_stage_seconds_total",
            "counter",
            "Time spent in each stage; those of workers run at the same time in all of them.",
            tuple(({**consumer, "stage": k}, v.total_s) for k, v in stats.stages.items()),
        ),
        Metric(
            "swift_loader_worker_batches_total",
            "counter",
            "Batches delivered, by worker.",
            tuple((labels, row.batches) for labels, row in workers),
        ),
        Metric(
            "swift_loader_worker_cpu_seconds_total",
            "counter",
            "CPU time of each worker.",
            tuple((labels, row.cpu_s) for labels, row in workers if row.cpu_s is not None),
        ),
        Metric(
            "swift_loader_worker_resident_bytes",
            "gauge",
            "Resident memory of each worker.",
            tuple((labels, row.rss_bytes) for labels, row in workers if row.rss_bytes is not None),
        ),
    ]


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    parts = []
    for name, value in labels.items():
        if not _LABEL.match(name) or name.startswith("__"):
            raise ValueError(f"{name!r} is no name of a Prometheus label")
        escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        parts.append(f'{name}="{escaped}"')
    return "{" + ",".join(parts) + "}"


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
