"""The bars: how many times a peer's rate, and what part of the limit, has to be reached."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    """Least ratios of batches a second: ours over torch's, over the best peer's, over the limit."""

    over_torch: float
    over_best_peer: float
    over_limit: float | None = None


BARS = {
    "image-u8": Bar(8, 1.7),
    "image-f32": Bar(5, 2.5),
    "tokens": Bar(10, 4),
    "tabular": Bar(4, 3),
    "tiny": Bar(12, 4),
    "many": Bar(20, 1.4),
    "jpeg": Bar(1.05, 1.05, 0.95),
    "python": Bar(1.05, 1.05, 0.95),
    "uneven, first-ready": Bar(1.3, 1, 0.9),
}

# Of the training process, a batch: at most this part of what torch's DataLoader takes.
CPU_OVER_TORCH = 0.2
CPU_WORKLOADS = ("image-u8", "image-f32", "tokens", "tabular", "tiny", "many")
