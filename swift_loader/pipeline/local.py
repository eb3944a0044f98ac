"""A link to a worker on this machine, a process or a thread. Role: part of the training process.

Sends on the worker's channel: `SetPlan`, `Make` (with a slot that it assigns), `Forget`, or `Long`
in place of one. Takes `Ready`, `StartFailed`, `Made`, `Failed`, `Skipped`, `Exhausted` from it, and
`Started` and `Exited` on the worker's sentinel, from the zygote or the thread.
"""

from __future__ import annotations

import contextlib
import select
import signal
import time
from collections.abc import Iterable, Sequence

from swift_loader.order.part import Number
from swift_loader.pipeline.answers import Answer, OrderedSlots
from swift_loader.pipeline.link import (
    Event,
    Gone,
    Refused,
    Running,
    Up,
)
from swift_loader.pipeline.out_of_memory import cgroup_memory, why_killed
from swift_loader.plan import Plan
from swift_loader.transport.channel import ChannelClosedError
from swift_loader.transport.memory import create_region, map_shared
from swift_loader.transport.messages import (
    Forget,
    Long,
    Made,
    Make,
    Message,
    Ready,
    SetPlan,
    StartFailed,
)
from swift_loader.transport.slots import OnMap
from swift_loader.transport.table import pack, unpack
from swift_loader.worker.launched import BATCH_WORKER, Launched, Launcher
from swift_loader.worker.place import Place
from swift_loader.worker.zygote import Exited, Started

__all__ = ["LocalLink"]

_INLINE_BYTES = 1 << 14  # longer messages travel in memory of their own: sockets are small
_END_GRACE_S = 1.0
_SIGNALS = {int(number): number.name for number in signal.Signals}


class LocalLink:
    """See `swift_loader.pipeline.link.Link`."""

    due_s = None

    def __init__(
        self,
        launcher: Launcher,
        worker: int,
        place: Place,
        payload_fd: int,
        max_kept: int,
        on_map: OnMap | None = None,
        module: str = BATCH_WORKER,
    ) -> None:
        self.worker = worker
        self.name = f"worker {worker}"
        group = cgroup_memory()
        self._nb_killed_before = group.nb_killed if group is not None else 0
        self._launcher = launcher
        self._process: Launched = launcher.spawn(worker, place, payload_fd, module)
        self._slots = OrderedSlots(max_kept, on_map)
        self._channel_open = True
        self._ready = False
        self._over = False
        self._killed_why = ""
        self._lacking = False  # this process lacked what the worker needs

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def filenos(self) -> Sequence[int]:
        sockets = [self._process.sentinel]
        if self._channel_open:
            sockets.append(self._process.channel)
        return [] if self._over else [s.fileno() for s in sockets if not s.closed]

    # ---- down

    def set_plan(self, plan_id: int, plan: Plan) -> None:
        self._post(SetPlan(plan_id, plan))

    def make(self, ticket: int, number: Number, indices: bytes) -> None:
        self._post(Make(ticket, number, self._slots.take(ticket), indices))

    def forget(self, tickets: Iterable[int]) -> None:
        self._post(Forget(frozenset(tickets)))

    def flush(self) -> None:
        self._process.channel.flush()

    def _post(self, message: Message) -> None:
        kind, payload = pack(message)
        if len(payload) <= _INLINE_BYTES:
            self._process.channel.post(kind, payload)
            return
        fd = create_region(len(payload), "message")
        with map_shared(fd, len(payload)) as region:
            region[:] = payload
        self._process.channel.post(*pack(Long(kind, len(payload))), fd)

    # ---- up

    def receive(self) -> list[Event]:
        if self._over:
            return []
        events: list[Event] = []
        if self._channel_open:
            self._receive_from_worker(events)
        if not events and not self._over:  # else it stays readable: one system call less a batch
            self._receive_from_zygote(events)
        return events

    def _receive_from_worker(self, events: list[Event]) -> None:
        channel = self._process.channel
        try:
            frames = channel.receive(wait=False)
        except ChannelClosedError:
            self._channel_open = False  # the sentinel will say how it ended
            self._end_if_it_lives()
            return
        except OSError as error:  # what came with the message is lost, and so is the worker
            self._channel_open = False
            self._lacking = True
            self.kill(f"sent what this process had no room for: {error}")
            return
        for kind, payload in frames:
            events.append(self._event(unpack(kind, payload)))
        if frames:
            channel.flush()

    def _end_if_it_lives(self) -> None:
        """A worker whose end of the channel is closed owes what it can't answer any more."""
        if self._process.sentinel.closed:  # in a process that the user has forked: not ours
            return
        if self._process.is_ending:
            return
        poll = select.poll()
        poll.register(self._process.sentinel, select.POLLIN)
        if not poll.poll(_END_GRACE_S * 1000):  # it is not at its end with an exception either
            self.kill(
                "closed its connection to the training process and went on, as a data set makes it "
                "that closes descriptors which it did not open; so it was ended"
            )

    def _event(self, message: Message) -> Event:
        if type(message) is Made or isinstance(message, Answer):  # a union takes its time
            return self._slots.event(message, self._process.channel)
        if isinstance(message, Ready):
            self._ready = True
            return Up(message.nb_samples, message.dataset_name, lengths=message.lengths)
        if isinstance(message, StartFailed):
            self._over = True
            return Refused(message.report)
        raise TypeError(f"a worker does not send {type(message).__name__}")

    def _receive_from_zygote(self, events: list[Event]) -> None:
        sentinel = self._process.sentinel
        try:
            frames = sentinel.receive(wait=False)
        except ChannelClosedError:
            self._over = True
            self._launcher.lost(self._process)
            events.append(Gone("the process that workers are forked from ended", None))
            return
        for frame in frames:
            message: Started | Exited = unpack(*frame)
            if isinstance(message, Started):
                self._process.pid = message.pid
                events.append(Running(message.pid or None))
                continue
            while self._channel_open and not self._over:  # what it sent before it died counts
                before = len(events)
                self._receive_from_worker(events)
                if len(events) == before:
                    break
            if not self._over:
                self._over = True
                events.append(self._gone(message))

    def _gone(self, exited: Exited) -> Gone:
        ticket, sample, stage = self._process.progress.read()
        killed = bool(self._killed_why) and exited.status == -signal.SIGKILL
        how = self._killed_why if killed else _how_it_ended(exited, self._nb_killed_before)
        what = f"pid {self._process.pid}" if self._process.pid else "a thread"
        story = f"{self.name} ({what}) {how}"
        if self._process.pid is None:
            story = f"{self.name} did not start"
        if exited.stderr_tail.strip():
            story += f"\nThe last that it wrote to stderr:\n{exited.stderr_tail.rstrip()}"
        if self._lacking or self._process.pid is None:  # it never ran: there was no room for it
            return Gone(story, None, replace="later")
        outside = exited.status == -signal.SIGKILL and not killed
        if stage == "idle" and not self._slots.owes(ticket):  # else it could not send it
            return Gone(story, None, outside=outside)
        if stage == "reading again":  # what was made of that has come
            story += f"\nIt was reading the stream again; the last item that it began is {sample}"
            return Gone(story, None, outside=outside)
        return Gone(story, ticket, sample if sample >= 0 else None, outside=outside)

    # ---- supervision

    def stack(self) -> str:
        ticket, sample, stage = self._process.progress.read()
        where = f"{stage} (ticket {ticket}" + (f", sample {sample})" if sample >= 0 else ")")
        if self._process.pid is None:
            return "it has not started yet"
        if not self._ready:
            where = "it builds its data set"
        return where + self._process.stack()

    def kill(self, why: str) -> None:
        self._killed_why = why
        self._process.kill()

    def close(self) -> None:
        self._over = True
        self._process.channel.close()

    def wait_closed(self, deadline_s: float) -> None:
        sentinel = self._process.sentinel
        poll = select.poll()
        if not sentinel.closed:
            poll.register(sentinel, select.POLLIN)
        with contextlib.suppress(ChannelClosedError):
            while not sentinel.closed:
                remaining_s = deadline_s - time.monotonic()
                if remaining_s <= 0 or not poll.poll(remaining_s * 1000):
                    break
                frames = sentinel.receive(wait=False)
                if any(isinstance(unpack(*frame), Exited) for frame in frames):
                    break
        self._process.close()


def _how_it_ended(exited: Exited, nb_killed_before: int) -> str:
    """``was killed by SIGKILL: …`` or ``exited with code 3``."""
    if exited.status >= 0:
        return f"exited by itself with code {exited.status}"
    name = _SIGNALS.get(-exited.status, f"signal {-exited.status}")
    text = f"was killed by {name}"
    if name == "SIGKILL":
        text += f"; {why_killed(exited.max_rss_bytes, nb_killed_before, cgroup_memory())}"
    elif name in ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT"):
        text += "; a fault in native code of the dataset or of a library that it calls"
    return text
