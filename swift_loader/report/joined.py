"""``swift-loader trace run.json torch.json --out both.json``: two traces on one clock.

The loader's trace (``trace_file``) and that of `torch.profiler` become one file for
https://ui.perfetto.dev. Arrows lead from the worker that made a batch over its decoding to the step
that waited for it, in torch's own track too.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swift_loader.errors import ConfigError

__all__ = ["join", "read_trace", "trace_main"]

_WAIT = "swift_loader.wait"  # a range in torch's trace
_OURS = 10_000_000  # process ids of ours in the joined file: above those of any system
_NEAR_US = 5_000.0  # two clocks of one machine differ by less


def trace_main(argv: Sequence[str]) -> int:
    """Join the files; returns 0, or 1 with a line on stderr. `argv` without the program's name."""
    parser = argparse.ArgumentParser(
        prog="swift-loader trace",
        description="Join a trace of the loader with one of torch.profiler.",
    )
    parser.add_argument("loader", metavar="run.json", help="what trace_file wrote")
    parser.add_argument("torch", metavar="torch.json", help="of export_chrome_trace; .gz too")
    parser.add_argument("--out", required=True, metavar="FILE", help="the joined trace")
    arguments = parser.parse_args(argv)
    try:
        joined = join(read_trace(arguments.loader), _read_torch(arguments.torch))
        Path(arguments.out).write_text(json.dumps(joined), encoding="utf-8")
    except (OSError, ValueError) as error:
        sys.stderr.write(f"swift-loader trace: {error}\n")
        return 1
    return 0


def read_trace(path: str) -> list[dict[str, Any]]:
    """The events of a `trace_file`, also of one whose process was killed.

    Raises `OSError`, and `ConfigError` where it is no such file.
    """
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    events = []
    for line in text.splitlines():
        line = line.strip().rstrip(",")
        if line.startswith("{"):
            try:
                events.append(json.loads(line))
            except ValueError:  # the last line of a killed process
                break
    if not any(event.get("name") == "swift_loader_clock" for event in events):
        raise ConfigError(f"{path!r} is no file that trace_file of this version wrote")
    return events


def join(ours: list[dict[str, Any]], theirs: dict[str, Any]) -> dict[str, Any]:
    """Torch's trace with the loader's events in it, on torch's clock. Pure."""
    zero_ns = next(e["args"]["unix_ns"] for e in ours if e.get("name") == "swift_loader_clock")
    shift_us = (zero_ns - int(theirs.get("baseTimeNanoseconds", 0))) / 1000
    moved = []
    for event in ours:
        event = {**event, "pid": _OURS + int(event.get("pid", 0))}
        if "ts" in event:
            event["ts"] = event["ts"] + shift_us
        moved.append(event)
    events = [*theirs["traceEvents"], *moved, *_arrows(moved, theirs["traceEvents"])]
    return {**theirs, "traceEvents": events}


def _arrows(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """From the end of each wait in our track to the range of the same wait in torch's."""
    waits = sorted(
        (e for e in ours if e.get("name") == "wait" and e.get("ph") == "X"), key=lambda e: e["ts"]
    )
    starts = [event["ts"] for event in waits]
    arrows = []
    ranges = [e for e in theirs if e.get("name") == _WAIT and e.get("ph") == "X"]
    for number, event in enumerate(ranges):
        at = bisect_left(starts, event["ts"])
        near = [waits[i] for i in (at - 1, at) if 0 <= i < len(waits)]
        mine = min(near, key=lambda wait: abs(wait["ts"] - event["ts"]), default=None)
        if mine is None or abs(mine["ts"] - event["ts"]) > _NEAR_US:
            continue
        flow = {"name": "batch", "cat": "swift_loader.joined", "id": number}
        for kind, one in (("s", mine), ("f", event)):
            place = {"pid": one["pid"], "tid": one["tid"], "ts": one["ts"] + 0.9 * one["dur"]}
            arrows.append({**flow, **place, "ph": kind, **({"bp": "e"} if kind == "f" else {})})
    return arrows


def _read_torch(path: str) -> dict[str, Any]:
    data = Path(path).read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    trace = json.loads(data)
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise ConfigError(f"{path!r} is no file that export_chrome_trace of torch.profiler wrote")
    return trace
