"""Asking an endpoint what it is doing. Says `AskStatus`; the answer is `Status`."""

from __future__ import annotations

from typing import Any

import zmq

from swift_loader.errors import WorkerError
from swift_loader.remote.frames import checked, pack_frames, sealed, unpack_frames
from swift_loader.remote.keys import Keys
from swift_loader.remote.messages import AskStatus, FrameError, Status

__all__ = ["ask_status", "line_of"]


def ask_status(address: str, keys: Keys | None, timeout_s: float = 5.0) -> dict[str, Any]:
    """What the endpoint at `address` says of itself: sessions, workers, batches, versions.

    Raises `WorkerError` when it does not answer within `timeout_s` seconds.
    """
    context: zmq.Context[Any] = zmq.Context()
    try:
        asking = context.socket(zmq.DEALER)
        asking.linger = 0
        if keys is not None:
            keys.secure_client(asking)
        asking.connect(address)
        asked = pack_frames(AskStatus())
        asking.send_multipart(asked if keys is not None else sealed(asked))
        if not asking.poll(int(timeout_s * 1000)):
            key = f"key {keys.fingerprint}" if keys else "no key"
            raise WorkerError(
                f"{address} did not answer within {timeout_s:g} s: no endpoint is there, or it "
                f"does not use the key that was given ({key})"
            )
        told = [frame.buffer for frame in asking.recv_multipart(copy=False)]
        for message in unpack_frames(told if keys is not None else checked(told)):
            if isinstance(message, Status):
                return message.facts
        raise FrameError(f"{address} answered something else")
    finally:
        context.destroy(linger=0)


def line_of(facts: dict[str, Any]) -> str:
    """One line of them, for a log."""
    made = sum(session["batches"] for session in facts["sessions"])
    return (
        f"{len(facts['sessions'])} sessions, {facts['workers_running']} of {facts['workers']} "
        f"workers, {made:,} batches in running sessions"
    )
