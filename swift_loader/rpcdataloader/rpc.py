"""Calls of functions on endpoints. Role: a thread a host, in the calling process.

Says nothing of its own: it drives a link to an endpoint (`swift_loader.remote.client`), as the
pipeline does, and completes the caller's futures. The connection is made with the first call and
stays; calls travel without waiting for each other.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch

from swift_loader.batch.codec import decode
from swift_loader.batch.shipping import pack
from swift_loader.errors import ConfigError, WorkerDiedError, WorkerTimeoutError
from swift_loader.order.part import Number
from swift_loader.pipeline.elsewhere import Brief
from swift_loader.pipeline.link import Crashed, Event, Gone, MadeBatch, NotMade, Refused, Up
from swift_loader.pipeline.reader import Waiter
from swift_loader.plan import Plan
from swift_loader.remote.address import Address, check_address
from swift_loader.remote.client import EndpointLink, sha256_of
from swift_loader.remote.keys import load_keys
from swift_loader.remote.source import keys_for
from swift_loader.rpcdataloader.calls import CALLS, Outcome, RRef, words_of
from swift_loader.rpcdataloader.pinning import pinned
from swift_loader.transport.memory import filled_region
from swift_loader.worker.faults import revive
from swift_loader.worker.place import Place

__all__ = ["address_of", "rpc_async"]

_CLOSE_S = 1.0


def rpc_async(
    host: str,
    func: Callable[..., Any],
    args: Sequence[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    pin_memory: bool = False,
    rref: bool = False,
    timeout: float = 120.0,
) -> torch.futures.Future[Any]:
    """Call ``func(*args, **kwargs)`` on the worker `host` (``"host:port"``).

    Returns a future of the result, whose tensors lie in pinned memory with `pin_memory`. With
    `rref` the result stays with the worker, and the future gives a reference to it that can be an
    argument of further calls.

    The future raises what the function raised; `WorkerDiedError` when the worker is gone or can't
    be reached; `WorkerTimeoutError` when nothing came within `timeout` seconds.

    Raises `ShippingError` when the function or an argument can't travel, `ConfigError` for a host
    that is no address.
    """
    arguments, named = args or (), kwargs or {}
    future: torch.futures.Future[Any] = torch.futures.Future()
    if rref:
        reference = RRef(func, arguments, named)
        words = words_of(_touch, (reference,), {})
        _host_of(host).call(_Call(future, words, timeout, stand_in=reference))
    else:
        words = words_of(func, arguments, named)
        _host_of(host).call(_Call(future, words, timeout, pin=pin_memory))
    return future


def address_of(host: str) -> str:
    """``tcp://host:port`` for ``host:port``. Raises `ConfigError`: it is none, or needs a key."""
    address = host if "://" in host else f"tcp://{host}"
    check_address(address)
    keys_for(address, None)
    return address


def _touch(thing: Any) -> None:
    """Called with an `RRef`, has the object made."""


@dataclass(eq=False)
class _Call:
    future: torch.futures.Future[Any]
    words: bytes
    timeout_s: float
    pin: bool = False
    stand_in: RRef | None = None
    until_s: float = 0.0

    def complete(self, outcome: Outcome, where: str) -> None:
        if outcome.fault is not None:
            self.fail(revive(outcome.fault, where))
        elif self.stand_in is not None:
            self.future.set_result(self.stand_in)
        else:
            self.future.set_result(pinned(outcome.value) if self.pin else outcome.value)

    def fail(self, error: BaseException) -> None:
        self.future.set_exception(error)


class _Host:
    """The calls to one host: its thread connects, sends, receives and keeps the time."""

    def __init__(self, address: str) -> None:
        self._address = address
        payload = pack(dict(vars(CALLS)), elsewhere=True)
        self._payload_fd = filled_region(payload.nbytes, "calls", payload.write)
        self._lock = threading.Lock()
        self._new: list[_Call] = []
        self._calls: dict[int, _Call] = {}  # sent or to be sent, by ticket
        self._tickets = itertools.count(1)
        self._waiter = Waiter()
        self._link: EndpointLink | None = None
        self._up = False
        self._open = True
        # A daemon, so that an interpreter that ends is not held up; `close` runs at its exit.
        self._thread = threading.Thread(
            target=self._run, name=f"swift_loader-rpc-{address}", daemon=True
        )
        self._thread.start()

    def call(self, call: _Call) -> None:
        call.until_s = time.monotonic() + call.timeout_s
        with self._lock:
            self._new.append(call)
        self._waiter.wake()

    def close(self) -> None:
        self._open = False
        self._waiter.wake()
        self._thread.join()

    # ---- the thread

    def _run(self) -> None:
        while self._open:
            self._take_new()
            for _, events in self._waiter.wait(self._remaining_s()):
                for event in events:
                    self._on_event(event)
            self._expire()
        self._let_go()
        self._waiter.close()
        os.close(self._payload_fd)
        for call in [*self._calls.values(), *self._new]:
            call.fail(WorkerDiedError("the process ends"))

    def _take_new(self) -> None:
        with self._lock:
            new, self._new = self._new, []
        if new and self._link is None:
            try:
                self._connect(max(call.timeout_s for call in new))
            except ConfigError as error:
                for call in new:
                    call.fail(error)
                return
        for call in new:
            ticket = next(self._tickets)
            self._calls[ticket] = call
            if self._up:
                self._send(ticket, call)
        if self._link is not None:
            self._link.flush()

    def _connect(self, timeout_s: float) -> None:
        place = Place(0, 1, 1, 0, None)
        brief = Brief(place, self._payload_fd, 0, 1, timeout_s)
        address = Address(self._address, load_keys(None), timeout_s)
        self._link = EndpointLink(0, address, brief, sha256_of(self._payload_fd))
        self._waiter.add(self._link)

    def _send(self, ticket: int, call: _Call) -> None:
        assert self._link is not None
        self._link.make(ticket, Number(0, 0, ticket), call.words)

    def _on_event(self, event: Event) -> None:
        match event:
            case Up():
                assert self._link is not None
                self._up = True
                self._link.set_plan(0, Plan(2**62, 1, 1, False, 0, 0))
                for ticket, call in self._calls.items():
                    self._send(ticket, call)
                self._link.flush()
            case MadeBatch(ticket=ticket, parcel=parcel):
                call_ = self._calls.pop(ticket, None)
                if call_ is None:  # it had timed out
                    parcel.discard()
                else:
                    self._decode(call_, event)
            case NotMade(ticket=ticket, fault=fault):
                failed = self._calls.pop(ticket, None)
                if failed is not None:
                    assert fault is not None
                    failed.fail(revive(fault, self._address))
            case Crashed(story=story, ticket=ticket) if ticket is not None:
                lost = self._calls.pop(ticket, None)
                if lost is not None:
                    lost.fail(WorkerDiedError(f"{story}\nIt was running a call"))
            case Refused(fault=refusal):
                self._fail_all(revive(refusal, self._address))
            case Gone():
                self._fail_all(WorkerDiedError(event.story))

    def _decode(self, call: _Call, made: MadeBatch) -> None:
        try:
            outcome: Outcome = decode(*made.parcel.open())
        except Exception as error:  # noqa: BLE001 - it is the caller's to see
            call.fail(error)
            return
        call.complete(outcome, self._address)

    def _fail_all(self, error: BaseException) -> None:
        self._let_go()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.fail(error)

    def _let_go(self) -> None:
        link, self._link, self._up = self._link, None, False
        if link is not None:
            self._waiter.discard(link)
            link.close()
            link.wait_closed(time.monotonic() + _CLOSE_S)

    def _remaining_s(self) -> float:
        return min((call.until_s for call in self._calls.values()), default=inf) - time.monotonic()

    def _expire(self) -> None:
        now_s = time.monotonic()
        late = [ticket for ticket, call in self._calls.items() if now_s >= call.until_s]
        for ticket in late:
            call = self._calls.pop(ticket)
            call.fail(
                WorkerTimeoutError(
                    f"{self._address} did not answer a call within timeout={call.timeout_s:g} s"
                )
            )


_hosts: dict[str, _Host] = {}
_hosts_lock = threading.Lock()


def _host_of(host: str) -> _Host:
    address = address_of(host)
    with _hosts_lock:
        if address not in _hosts:
            _hosts[address] = _Host(address)
        return _hosts[address]


def close_hosts() -> None:
    """End all connections. Happens by itself when the interpreter ends."""
    with _hosts_lock:
        hosts = list(_hosts.values())
        _hosts.clear()
    for host in hosts:
        host.close()


def _forget_in_forked_child() -> None:
    global _hosts_lock
    _hosts_lock = threading.Lock()
    _hosts.clear()


atexit.register(close_hosts)
os.register_at_fork(after_in_child=_forget_in_forked_child)
