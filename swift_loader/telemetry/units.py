"""Seconds and bytes as texts, for whoever reads figures."""

from __future__ import annotations

__all__ = ["format_bytes", "format_seconds"]


def format_seconds(seconds: float) -> str:
    """``1.42 s``, ``3.1 ms``, ``12 us``, ``0 s``, ``3 min 05 s``, ``2 h 03 min``."""
    if seconds >= 7200:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    if seconds >= 120:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.1g} us" if seconds > 0 else "0 s"


def format_bytes(nbytes: float) -> str:
    """``9.6 MB``, in powers of 1000."""
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if nbytes >= scale:
            return f"{nbytes / scale:.3g} {unit}"
    return f"{nbytes:.0f} B"
