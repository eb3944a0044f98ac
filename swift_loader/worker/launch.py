"""Starting workers from the training process: the zygote, shared by all its loaders, and a worker.

Role: part of the training process. Sends to the zygote: `Spawn`, with the worker's descriptors;
`Rest`, when the last loader that used it is closed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import subprocess
import threading
from typing import ClassVar

import psutil

from swift_loader.batch.identity import main_has
from swift_loader.errors import WorkerDiedError
from swift_loader.transport.channel import Channel, ChannelClosedError, channel_pair
from swift_loader.transport.memory import create_region, map_shared
from swift_loader.transport.table import pack
from swift_loader.worker.boot import boot, circumstances
from swift_loader.worker.launched import BATCH_WORKER
from swift_loader.worker.place import Place
from swift_loader.worker.progress import Progress
from swift_loader.worker.script import ProcessMethod, names_in_workers
from swift_loader.worker.signals import STACK_SIGNAL
from swift_loader.worker.surroundings import Surroundings
from swift_loader.worker.zygote import Inherited, Rest, Spawn

__all__ = ["LaunchedWorker", "Zygote"]

_EXIT_GRACE_S = 5.0
_STACK_WAIT_S = 1.0
_STACK_QUIET_S = 0.05


class LaunchedWorker:
    """The training process's end of a worker that was asked for."""

    def __init__(self, index: int, zygote_pid: int) -> None:
        self.index = index
        self.zygote_pid = zygote_pid
        self.pid: int | None = None
        with contextlib.ExitStack() as undo:  # where there are no descriptors, or no memory, left
            self.channel, self._their_channel = channel_pair()
            undo.callback(self.channel.close)
            undo.callback(self._their_channel.close)
            self.sentinel, self._their_sentinel = channel_pair()
            undo.callback(self.sentinel.close)
            undo.callback(self._their_sentinel.close)
            self.stack_fd, self._their_stack_fd = os.pipe()
            undo.callback(os.close, self.stack_fd)
            undo.callback(os.close, self._their_stack_fd)
            self._progress_fd = create_region(Progress.NBYTES, f"progress-{index}")
            undo.callback(os.close, self._progress_fd)
            self.progress = Progress(memoryview(map_shared(self._progress_fd, Progress.NBYTES)))
            undo.pop_all()

    def request(self, control: Channel, place: Place, payload_fd: int, module: str) -> None:
        """Ask the zygote for the process. Raises `ChannelClosedError` when the zygote is gone."""
        spawn = Spawn(self.index, place, Surroundings.here(), module)
        inherited = Inherited(
            self._their_channel.fileno(), payload_fd, self._progress_fd, self._their_stack_fd
        )
        try:
            control.send(*pack(spawn), (*inherited, self._their_sentinel.fileno()))
        finally:
            self._their_channel.close()
            self._their_sentinel.close()
            os.close(self._their_stack_fd)
            os.close(self._progress_fd)

    @property
    def is_ending(self) -> bool:
        """Whether it is past its own code: the kernel frees memory before descriptors."""
        if self.pid is None:
            return True
        try:
            return psutil.Process(self.pid).memory_info().rss == 0
        except (psutil.Error, OSError):  # it is gone, or no descriptor is left to look with
            return True

    def stack(self) -> str:
        """Its Python stacks on lines of their own, or why they can't be had."""
        assert self.pid is not None
        try:
            status = psutil.Process(self.pid).status()
            os.kill(self.pid, STACK_SIGNAL)
        except (psutil.NoSuchProcess, ProcessLookupError):
            return "; its process is gone"
        except OSError as error:
            return f"; its process can't be looked at: {error}"
        text = self._read_stack()
        if not text:
            return f"; it did not show its stack within {_STACK_WAIT_S:g} s ({status})"
        return f"\n{text.rstrip()}"

    def _read_stack(self) -> str:
        poll = select.poll()
        poll.register(self.stack_fd, select.POLLIN)
        data, wait_s = b"", _STACK_WAIT_S
        while poll.poll(wait_s * 1000):
            piece = os.read(self.stack_fd, 1 << 16)
            if not piece:
                break
            data += piece
            wait_s = _STACK_QUIET_S  # it is written in small pieces
        return data.decode(errors="replace")

    def kill(self) -> None:
        """End it at once, if it runs."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Let go of the worker: it ends by itself, and is killed if it has not by then."""
        self.channel.close()
        self.sentinel.close()
        if self.stack_fd >= 0:
            os.close(self.stack_fd)
            self.stack_fd = -1


class Zygote:
    """A handle on the process that workers are forked from; one a training process and method.

    `acquire` starts it, or shares the one that runs. After the last `release` it stays for the next
    loader, which need not wait for another import of torch, until this process ends (as the fork
    server of `multiprocessing` does). One that is forked from the training process holds what is
    there at that moment: it is not shared, and ends with its loader. Where the process was killed,
    the next `spawn` starts another one.
    """

    # Of a kind that one thread may take twice: the collector may free, and so close, a forgotten
    # loader while the thread that it runs in builds the next one.
    _lock: ClassVar[threading.RLock] = threading.RLock()
    _running: ClassVar[dict[ProcessMethod, Zygote]] = {}
    _stay: ClassVar[bool] = True  # until this process ends

    def __init__(self, method: ProcessMethod) -> None:
        self._method = method
        self._users = 0
        self._owner_pid = os.getpid()
        self._spawning = threading.Lock()
        self._boot()

    def _boot(self) -> None:
        self._born_in = circumstances()
        self._control, self._process = boot(self._method)

    @classmethod
    def acquire(cls, method: ProcessMethod = "fresh") -> Zygote:
        """The running zygote, or a new one. Pair with `release`.

        Raises `ConfigError` where there can be none by this method.
        """
        with cls._lock:
            zygote = found = cls._running.get(method)
            if zygote is None or zygote._is_stale():
                zygote = cls(method)
                if method != "fork":
                    cls._running[method] = zygote
            zygote._users += 1
        if found is not None and found is not zygote:
            found._end()
        return zygote

    def _is_stale(self) -> bool:
        """Whether no loader uses it, and the next loader needs another one: it has ended, or what
        this process hands on (see `circumstances`) has changed since it started.
        """
        idle = not self._users
        return idle and (self._process.poll() is not None or self._born_in != circumstances())

    @classmethod
    def end_idle(cls) -> None:
        """End those that no loader uses."""
        with cls._lock:
            idle = [one for one in cls._running.values() if not one._users]
            for one in idle:
                del cls._running[one._method]
        for one in idle:
            one._end()

    def spawn(
        self, index: int, place: Place, payload_fd: int, module: str = BATCH_WORKER
    ) -> LaunchedWorker:
        """Ask for a worker whose life is `module`'s `main`.

        Returns at once; its sentinel tells when it runs, and when it ends.

        Raises `WorkerDiedError` when the process to fork from is gone, and a new one as well.
        """
        with self._spawning:
            try:
                return self._request(index, place, payload_fd, module)
            except ChannelClosedError:
                self._end()
                self._boot()
            try:
                return self._request(index, place, payload_fd, module)
            except ChannelClosedError as error:
                raise WorkerDiedError(
                    "the process that workers are forked from ends as soon as it starts (exit "
                    f"status {self._process.poll()}); what it printed stands above"
                ) from error

    def lost(self, worker: LaunchedWorker) -> None:
        """The sentinel of `worker` closed: who was to tell of its end is gone.

        Its control socket may take one more `Spawn` before the kernel has closed it too.
        """
        with self._spawning:
            if worker.zygote_pid == self._process.pid:
                self._control.close()

    def _request(self, index: int, place: Place, payload_fd: int, module: str) -> LaunchedWorker:
        worker = LaunchedWorker(index, self._process.pid)
        try:
            with main_has(names_in_workers(self._method)):  # of settings that hold such classes
                worker.request(self._control, place, payload_fd, module)
        except ChannelClosedError:
            worker.close()
            raise
        return worker

    def release(self) -> None:
        """One user less."""
        with Zygote._lock:
            self._users -= 1
            if self._users > 0 or self._owner_pid != os.getpid():
                return
            running = Zygote._running.get(self._method) is self
            stays = running and Zygote._stay
            if running and not stays:
                del Zygote._running[self._method]
        if not stays:
            self._end()
            return
        with self._spawning, contextlib.suppress(ChannelClosedError):  # it was killed
            self._control.send(*pack(Rest()))

    def _end(self) -> None:
        self._control.close()
        try:
            self._process.wait(_EXIT_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_EXIT_GRACE_S)


def _end_with_this_process() -> None:
    """End the zygotes that no loader uses; the others end when their last loader closes."""
    Zygote._stay = False
    Zygote.end_idle()


def _forget_in_forked_child() -> None:
    Zygote._lock = threading.RLock()
    Zygote._running = {}


os.register_at_fork(after_in_child=_forget_in_forked_child)
atexit.register(_end_with_this_process)
