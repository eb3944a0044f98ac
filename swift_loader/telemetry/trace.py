"""The ``trace_file`` option: what ran when, for https://ui.perfetto.dev or ``chrome://tracing``.

The file is a JSON array of Chrome trace events, one a line, streamed: a process that is killed
leaves an array without its end, which both viewers read. Memory is bounded by a buffer of 512
events, the file by one million (about 150 MB); the last event says that it stopped there.

Tracks of one consumer: the training loop (``wait``), the device (``to_device``), the reader
(``decode``), and one for each worker (``fetch``, ``collate``, ``encode``). Times are those of
`time.perf_counter`, which all processes of a Linux machine share. Arrows (flow events) lead a batch
from its worker to the step. ``swift_loader_clock`` says what the Unix time is at 0, so that
`swift_loader.report.joined` can join the file with torch's.
"""

from __future__ import annotations

import json
import os
import threading
import time
from os import PathLike, fspath

from swift_loader.telemetry.metrics import BatchTimes
from swift_loader.telemetry.output import Output

__all__ = [
    "DEVICE",
    "READER",
    "TRAINING",
    "TraceWriter",
    "open_trace",
    "worker_track",
]

TRAINING, DEVICE, READER = 0, 1, 2
_FIRST_WORKER = 10
_NAMES = {TRAINING: "training loop", DEVICE: "device", READER: "reader"}
_BUFFERED = 512
_MAX_EVENTS = 1_000_000


def worker_track(worker: int) -> int:
    """The track of worker `worker`."""
    return _FIRST_WORKER + worker


def open_trace(path: str | PathLike[str], consumer: int, nb_consumer: int = 1) -> TraceWriter:
    """Begin the trace of one consumer; of several, into ``trace.consumer-0.json`` and so on.

    An older file is replaced. Raises `ConfigError` when it can't be written.
    """
    name = fspath(path)
    if nb_consumer > 1:
        root, suffix = os.path.splitext(name)
        name = f"{root}.consumer-{consumer}{suffix}"
    return TraceWriter(name, consumer)


class TraceWriter:
    """Writes spans; any thread may call it. See `swift_loader.telemetry.output` for errors."""

    def __init__(self, path: str, consumer: int, max_events: int = _MAX_EVENTS) -> None:
        self._file = Output("trace_file", path, anew=True)
        self._consumer = consumer
        self._start_s = time.perf_counter()
        self._lock = threading.Lock()  # for all below
        self._buffer: list[dict[str, object]] = []
        self._tracks: set[int] = set()
        self._left = max_events
        self._open = True
        self._write(b"[\n")
        self._add(self._meta("process_name", 0, name=f"swift_loader consumer {consumer}"))
        zero_ns = time.time_ns() - round((time.perf_counter() - self._start_s) * 1e9)
        self._add(self._meta("swift_loader_clock", 0, unix_ns=zero_ns))

    def batch(
        self,
        times: BatchTimes,
        *,
        made_at_s: float | None,
        decoded_at_s: float,
        on_device_at_s: float | None = None,
    ) -> None:
        """All spans of one delivered batch, from the times at which its stages ended.

        `made_at_s`: the worker's `perf_counter` after encoding; None when its clock is another one
        (a remote worker): then its spans are laid just before decoding. `on_device_at_s`: None
        without a copy to a device.
        """
        args: dict[str, object] = {"epoch": times.epoch, "batch": times.k}
        end_s = decoded_at_s - times.decode_s if made_at_s is None else made_at_s
        track = worker_track(times.worker)
        for name, duration_s in (
            ("encode", times.encode_s),
            ("collate", times.collate_s),
            ("fetch", times.fetch_s),
        ):
            self.span(track, name, end_s - duration_s, duration_s, args)
            end_s -= duration_s
        self.span(READER, "decode", decoded_at_s - times.decode_s, times.decode_s, args)
        if on_device_at_s is not None:
            start_s = on_device_at_s - times.to_device_s
            self.span(DEVICE, "to_device", start_s, times.to_device_s, args)
        self.span(TRAINING, "wait", times.at_s - times.wait_s, times.wait_s, args)
        # Arrows from the worker to the loop: each end lies within the span that it belongs to.
        number = f"{self._consumer}.{times.epoch}.{times.k}"
        made_s = decoded_at_s - times.decode_s if made_at_s is None else made_at_s
        self._flow("s", number, track, made_s - times.encode_s / 2)
        self._flow("t", number, READER, decoded_at_s - times.decode_s / 2)
        self._flow("f", number, TRAINING, times.at_s - times.wait_s / 1000)

    def _flow(self, kind: str, number: str, track: int, at_s: float) -> None:
        self._add(
            {
                "name": "batch",
                "cat": "swift_loader",
                "ph": kind,
                "id": number,
                "ts": self._microseconds(at_s),
                "pid": self._consumer,
                "tid": track,
                **({} if kind == "s" else {"bp": "e"}),
            }
        )

    def span(
        self, track: int, name: str, start_s: float, duration_s: float, args: dict[str, object]
    ) -> None:
        """Something on `track` that began at `start_s` (`time.perf_counter`) and took so long."""
        self._add(
            {
                "name": name,
                "cat": "swift_loader",
                "ph": "X",
                "ts": self._microseconds(start_s),
                "dur": round(duration_s * 1e6, 3),
                "pid": self._consumer,
                "tid": track,
                "args": args,
            }
        )

    def close(self) -> None:
        """Write what is buffered and end the array, after all threads that write have ended.

        A second call does nothing.
        """
        with self._lock:
            events, self._buffer = self._buffer, []
            was_open, self._open = self._open, False
        if was_open:
            end = self._meta("process_sort_index", 0, sort_index=self._consumer)
            self._write(_lines(events) + json.dumps(end).encode() + b"\n]\n")
            self._file.close()

    def _add(self, event: dict[str, object]) -> None:
        full: list[dict[str, object]] = []
        with self._lock:
            if not self._open or self._left == 0:
                return
            self._left -= 1
            if self._left == 0:
                event = {**event, "name": "the trace ends here: it is full", "ph": "i", "s": "g"}
            track = event["tid"]
            if isinstance(track, int) and track not in self._tracks and event["ph"] != "M":
                self._tracks.add(track)
                self._buffer.append(self._meta("thread_name", track, name=_name(track)))
                self._buffer.append(self._meta("thread_sort_index", track, sort_index=track))
            self._buffer.append(event)
            if len(self._buffer) >= _BUFFERED:
                full, self._buffer = self._buffer, []
        if full:
            self._write(_lines(full))

    def _write(self, text: bytes) -> None:
        self._file.write(text)
        if not self._file.open:
            with self._lock:
                self._left = 0

    def _meta(self, what: str, track: int, **args: object) -> dict[str, object]:
        return {"name": what, "ph": "M", "pid": self._consumer, "tid": track, "args": args}

    def _microseconds(self, at_s: float) -> float:
        return round((at_s - self._start_s) * 1e6, 3)


def _lines(events: list[dict[str, object]]) -> bytes:
    return "".join(json.dumps(event, separators=(",", ":")) + ",\n" for event in events).encode()


def _name(track: int) -> str:
    return _NAMES.get(track, f"worker {track - _FIRST_WORKER}")
