"""How the measurements are shown: a table, where the time goes, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from swift_loader.bench.advice import Advice
from swift_loader.bench.trials import Trial
from swift_loader.telemetry.units import format_bytes, format_seconds

__all__ = ["advice_text", "heading", "row"]

_WIDTH = 88


def heading() -> str:
    """The line above the rows."""
    return f"{'':<36}{'batches/s':>12}{'samples/s':>13}{'bytes/s':>12}{'first batch':>14}"


def row(trial: Trial) -> str:
    """One trial."""
    volume = "-"
    if trial.batch_nbytes is not None:
        volume = format_bytes(trial.batch_nbytes * trial.batches_per_s)
    return (
        f"{trial.name:<36}{trial.batches_per_s:>12,.1f}{trial.samples_per_s:>13,.0f}{volume:>12}"
        f"{format_seconds(trial.first_s):>14}"
    )


def advice_text(alone: Trial, ours: Sequence[Trial], advice: Advice) -> str:
    """Where the time goes, and what to do."""
    chosen = next(
        trial
        for trial in ours
        if (trial.workers, trial.threads) == (advice.worker_per_consumer, advice.threads_per_worker)
    )
    lines = ["", f"Where the time of the workers goes ({chosen.name})"]
    parts = {
        "dataset[i]": chosen.stages.get("fetch", 0.0),
        "collate": chosen.stages.get("collate", 0.0),
        "encode": chosen.stages.get("encode", 0.0),
    }
    parts["waiting for orders or room"] = max(0.0, 1.0 - sum(parts.values()))
    lines += [f"  {name:<28}{share:>6.0%}  {_bar(share)}" for name, share in parts.items()]
    if alone.cpu_share is not None:
        others = ""
        if alone.starved_share > 0.05:
            others = f", is kept from the CPUs by other processes for {alone.starved_share:.0%}"
        lines.append(
            f"  dataset[i] computes for {min(1.0, alone.cpu_share):.0%} of its time{others}, and "
            "waits for the rest"
        )
    lines += [
        "",
        "Recommended",
        f"  worker_per_consumer={advice.worker_per_consumer}, "
        f"threads_per_worker={advice.threads_per_worker}, "
        f"data_queue_size={advice.data_queue_size}",
    ]
    for reason in advice.reasons:
        lines += wrap(reason, _WIDTH, initial_indent="  ", subsequent_indent="  ")
    lines += ["", "What to fix first"]
    lines += wrap(advice.fix_first, _WIDTH, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(lines) + "\n"


def _bar(share: float) -> str:
    return "█" * round(30 * min(1.0, share))
