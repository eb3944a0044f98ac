"""The process that workers are forked from. Role: one a training process, shared by its loaders.

Workers must start fast and must never be forked from the training process, whose image may hold
CUDA, threads and locks. So one plain Python process imports torch once and forks a worker whenever
it is asked to (the idea of CPython's `multiprocessing.forkserver` and Android's zygote).

It is a fresh process, which may be told to import the user's script first (`ImportScript`); or it
is forked from the training process, if the user says so: see `swift_loader.worker.script`.

It is asked by one `Spawn` frame on its control channel, with descriptors, or told by `Rest` that
nobody wants workers for now. It answers on the worker's own sentinel socket:

- `Started(pid)` when the worker was forked;
- `Exited(status, stderr_tail, max_rss_bytes)` when it ended, then the socket closes.

The closing of a sentinel by the other side means "kill this worker"; the closing of the control
channel means that the training process is gone, or done: all workers are killed and the process
ends. Nothing here waits for anything that a worker holds, nor for a reader of what workers print.
Programs that a worker leaves behind are ended: see `swift_loader.worker.strays`.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import gc
import importlib
import itertools
import os
import selectors
import signal
import socket
import sys
import time
import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from swift_loader.batch import large
from swift_loader.batch.identity import main_is_shared
from swift_loader.transport.channel import Channel, ChannelClosedError
from swift_loader.transport.table import message, pack, unpack
from swift_loader.transport.wakeup import Wakeup
from swift_loader.worker import script, signals
from swift_loader.worker.forwarding import Forwarding, is_stream
from swift_loader.worker.place import Place
from swift_loader.worker.reserve import Reserve, allow_most
from swift_loader.worker.strays import Strays, die_with_parent, wake_when_parent_ends
from swift_loader.worker.surroundings import Surroundings

__all__ = ["Exited", "Inherited", "Rest", "Spawn", "Started", "main_of_fork", "main_of_fresh"]

_TAIL_BYTES = 8192
_END_S = 1.5  # for children that don't end at once
_STREAMS = {1: "stdout", 2: "stderr"}


class Inherited(NamedTuple):
    """The descriptors that a worker is born with."""

    channel: int
    payload: int
    progress: int
    stack: int


@message
@dataclass(frozen=True, slots=True)
class Spawn:
    """Fork a worker. Beside it travel the descriptors of `Inherited` and the sentinel.

    `module` is the kind of worker: its `main(spawn, inherited)` is the worker's whole life.
    """

    index: int
    place: Place
    surroundings: Surroundings
    module: str


@message
@dataclass(frozen=True, slots=True)
class Rest:
    """Nobody wants workers for now: let go of what they had in common."""


@message
@dataclass(frozen=True, slots=True)
class Started:
    """The worker runs, as this process."""

    pid: int


@message
@dataclass(frozen=True, slots=True)
class Exited:
    """The worker ended. `status` as `os.waitstatus_to_exitcode` gives it: negative is a signal."""

    status: int
    stderr_tail: str
    max_rss_bytes: int


@dataclass(slots=True)
class _Child:
    pid: int
    sentinel: Channel
    printed: dict[int, int]  # by stream, 1 and 2: the descriptor that its output comes by
    tail: bytearray = field(default_factory=bytearray)  # of stderr


class _ForkedWorker(BaseException):
    """Carries the worker's main out of the zygote's stack, in the child."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run


def main(control_fd: int) -> None:
    """The whole life of a zygote; in a worker, the whole life of the worker."""
    signals.be_quiet()
    # What every worker needs, imported once:
    import swift_loader.worker.process  # noqa: F401

    _spare_finalizers()
    _freeze()
    if not script.state.forked:  # it was off for the imports
        gc.enable()
    try:
        _Zygote(Channel(socket.socket(fileno=control_fd))).serve()
    except _ForkedWorker as worker:
        run = worker.run
    else:
        return
    run()  # outside of the handler: what the worker raises is not an error while handling another


def main_of_fork(control_fd: int) -> NoReturn:
    """The same for a process that was forked from the training process, whose stack is below."""
    status = 1
    try:
        script.state.forked = True
        main_is_shared()
        atexit._clear()  # the training process's
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        for stream, name in _STREAMS.items():
            if not is_stream(stream):
                os.dup2(nothing, stream)
            if getattr(sys, name) is None:  # it was closed when Python started
                setattr(sys, name, os.fdopen(stream, "w", buffering=1, closefd=False))
        main(control_fd)
        status = 0
    except BaseException:  # noqa: BLE001 - nobody else would tell
        os.write(2, traceback.format_exc().encode())  # `sys.stderr` may be the script's own
    finally:
        os._exit(status)


def main_of_fresh(control_fd: int) -> NoReturn:
    """The same for a fresh process, whose end takes no module apart: torch's take half a second."""
    from swift_loader.worker.birth import leave

    main(control_fd)
    leave(0)


def _spare_finalizers() -> None:
    """Have no worker run torch's finalizers at its end.

    They take back each of torch's operators, though the process ends anyway. That takes a worker
    50 ms, and copies some 6,000 pages that it shared with this process.
    """
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False


def _freeze() -> None:
    """The collector of a worker would touch, and so copy, every page it looks at."""
    gc.freeze()


class _Zygote:
    def __init__(self, control: Channel) -> None:
        self._control = control
        self._children: dict[int, _Child] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, self._on_control)
        self._open = True
        self._wakeup = Wakeup()
        self._onward = {stream: Forwarding(self._selector, stream) for stream in _STREAMS}
        self._strays = Strays()
        allow_most()
        self._reserve = Reserve(len(Inherited._fields) + 1)  # for what a `Spawn` brings
        self._reserve.refill()
        wake_when_parent_ends(lambda: script.state.importing)
        signal.signal(signal.SIGCHLD, signals.do_nothing)
        signal.set_wakeup_fd(self._wakeup.signal_fd, warn_on_full_buffer=False)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._on_wake)

    def serve(self) -> None:
        while self._open:
            self._turn(None)
        for child in self._children.values():
            os.kill(child.pid, signal.SIGKILL)
        self._selector.unregister(self._control)
        ends_s = time.monotonic() + _END_S
        while (self._children or self._strays) and time.monotonic() < ends_s:
            self._turn(_END_S)
        signal.set_wakeup_fd(-1)
        self._wakeup.close()
        self._control.close()

    def _turn(self, at_most_s: float | None) -> None:
        due_s = self._strays.kill_the_late()
        waits_s = [one for one in (due_s, at_most_s) if one is not None]
        for key, _ in self._selector.select(min(waits_s, default=None)):
            key.data()

    def _on_control(self) -> None:
        self._reserve.release()
        try:
            frames = self._control.receive(wait=False)
        except ChannelClosedError:
            self._open = False
            return
        for frame in frames:
            told = unpack(*frame)
            if isinstance(told, script.ImportScript):
                script.import_script(told.how, told.orders)
                signals.be_quiet()  # the script may have handlers of its own
                signal.signal(signal.SIGCHLD, signals.do_nothing)
                self._strays.these_are_ours()
                gc.collect()  # what else the script has left stays in all workers
                _freeze()
            elif isinstance(told, Rest):
                large.let_go()
            else:
                self._spawn(told)
        self._reserve.refill()

    def _spawn(self, request: Spawn) -> None:
        from swift_loader.worker.birth import have_large

        run = importlib.import_module(request.module).main  # once for all workers of this kind
        fds = [self._control.take_fd() for _ in Inherited._fields]
        sentinel_fd = self._control.take_fd()
        parent = os.getpid()
        sentinel = Channel(socket.socket(fileno=sentinel_fd))
        pipes: dict[int, tuple[int, int]] = {}
        try:
            for stream in _STREAMS:
                pipes[stream] = os.pipe()
            if not self._reserve.refill():  # it stays full, or a `Spawn` would be lost
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            have_large(Inherited(*fds).payload)
            pid = os.fork()
        except OSError as error:  # no descriptors, processes or memory: the loader says so
            for fd in itertools.chain(fds, *pipes.values()):
                os.close(fd)
            self._tell(sentinel, Exited(1, f"it could not be forked: {error}", 0))
            sentinel.close()
            return
        if pid == 0:
            self._leave()
            for stream, (read, write) in pipes.items():
                os.close(read)
                os.dup2(write, stream)
                os.close(write)
            die_with_parent(parent)
            inherited = Inherited(*fds)
            raise _ForkedWorker(lambda: run(request, inherited))
        for fd in (*fds, *(write for _, write in pipes.values())):
            os.close(fd)
        printed = {stream: read for stream, (read, _) in pipes.items()}
        child = self._children[pid] = _Child(pid, sentinel, printed)
        self._tell(sentinel, Started(pid))
        self._selector.register(sentinel, selectors.EVENT_READ, lambda: self._on_sentinel(child))
        for stream, read in printed.items():
            os.set_blocking(read, False)
            self._selector.register(
                read, selectors.EVENT_READ, functools.partial(self._on_printed, child, stream)
            )

    def _leave(self) -> None:
        """In the child: let go of what belongs to the zygote. (Channels close by themselves.)"""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGCONT):
            signal.signal(number, signal.SIG_DFL)
        self._selector.close()
        self._wakeup.close()
        self._reserve.release()
        for onward in self._onward.values():
            onward.leave()
        for child in self._children.values():
            for fd in child.printed.values():
                os.close(fd)
        self._children.clear()

    def _on_wake(self) -> None:
        self._wakeup.clear()
        some = False
        with contextlib.suppress(ChildProcessError):  # no more children
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if not pid:
                    break
                some = True
                self._strays.ended(pid)
                if pid in self._children:
                    self._on_exit(self._children.pop(pid), status, usage.ru_maxrss)
        if some:
            self._strays.end(self._children)

    def _on_exit(self, child: _Child, status: int, max_rss: int) -> None:
        for stream in list(child.printed):
            self._on_printed(child, stream)
        unit = 1 if sys.platform == "darwin" else 1024
        tail = bytes(child.tail).decode(errors="replace")
        self._tell(child.sentinel, Exited(os.waitstatus_to_exitcode(status), tail, max_rss * unit))
        for stream in list(child.printed):  # a program that it started may hold the other end
            self._no_more_from(child, stream)
        if not child.sentinel.closed:
            self._selector.unregister(child.sentinel)
            child.sentinel.close()

    def _on_sentinel(self, child: _Child) -> None:
        """The other side never writes: readable means closed, closed means kill."""
        if child.sentinel.closed:
            return
        self._selector.unregister(child.sentinel)
        child.sentinel.close()
        if child.pid in self._children:
            os.kill(child.pid, signal.SIGKILL)

    def _on_printed(self, child: _Child, stream: int) -> None:
        """Pass on what the worker prints, and keep its last words."""
        while stream in child.printed:
            try:
                data = os.read(child.printed[stream], 1 << 16)
            except BlockingIOError:
                return
            if not data:
                self._no_more_from(child, stream)
                return
            if stream == 2:
                child.tail += data
                del child.tail[:-_TAIL_BYTES]
            self._onward[stream].write(data)

    def _no_more_from(self, child: _Child, stream: int) -> None:
        fd = child.printed.pop(stream)
        self._selector.unregister(fd)
        os.close(fd)

    def _tell(self, sentinel: Channel, said: Started | Exited) -> None:
        if not sentinel.closed:
            with contextlib.suppress(ChannelClosedError):  # the loader is gone: nobody to tell
                sentinel.send(*pack(said))
