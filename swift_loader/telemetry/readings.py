"""The figures of one loader, read from what `loader.stats()` returns. Pure."""

from __future__ import annotations

from swift_loader.telemetry.figures import PREFIX, Reading
from swift_loader.telemetry.stats import LoaderStats

__all__ = ["loader_readings"]

_STAGES = ("fetch", "collate", "encode", "decode", "to_device")


def loader_readings(stats: LoaderStats) -> list[Reading]:
    """All figures, those of single workers included."""
    values = {
        "batches_total": stats.batches,
        "samples_total": stats.samples,
        "batch_bytes_total": stats.nbytes,
        "epoch": -1 if stats.epoch is None else stats.epoch,
        "epoch_seconds_total": stats.elapsed_s,
        "wait_seconds_total": stats.stages["wait"].total_s,
        "loop_seconds_total": stats.stages["loop"].total_s,
        "startup_seconds": stats.startup_s,
        "recent_wait_ratio": stats.recent.wait_share,
        "recent_batches_per_second": stats.recent.batches_per_s,
        "recent_samples_per_second": stats.recent.samples_per_s,
        "recent_queue_depth": stats.recent.queue_depth,
        "workers": stats.nb_running,
        "worker_restarts_total": stats.restarts,
        "skipped_samples_total": stats.nb_skipped,
        "replaced_samples_total": stats.nb_replaced,
    }
    readings = [Reading(PREFIX + name, value) for name, value in values.items()]
    readings += [
        Reading(PREFIX + "stage_seconds_total", stats.stages[stage].total_s, stage)
        for stage in _STAGES
    ]
    for row in stats.workers:
        of = str(row.worker)
        each = {
            "worker_batches_total": row.batches,
            "worker_busy_seconds_total": row.busy_s,
            "worker_cpu_seconds_total": row.cpu_s,
            "worker_cpu_wait_seconds_total": row.cpu_wait_s,
            "worker_resident_bytes": row.rss_bytes,
        }
        readings += [
            Reading(PREFIX + name, value, of) for name, value in each.items() if value is not None
        ]
    for name, source in stats.sources.items():
        of_source = {
            "source_samples_total": source.samples,
            "source_tokens_total": source.tokens,
            "source_wait_seconds_total": source.wait_s,
        }
        readings += [
            Reading(PREFIX + what, value, name)
            for what, value in of_source.items()
            if value is not None
        ]
    return [*readings, *stats.others]
