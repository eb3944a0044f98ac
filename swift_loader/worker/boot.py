"""Starting the process that workers are forked from: a fresh one, or one forked from this process.

Role: part of the training process. Sends `ImportScript`, to a fresh one that imports the script.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Hashable
from contextlib import ExitStack, suppress
from typing import Protocol

from swift_loader.errors import ConfigError
from swift_loader.transport.channel import Channel, channel_pair
from swift_loader.transport.table import pack
from swift_loader.worker.cpus import usable_cpus
from swift_loader.worker.forwarding import is_stream
from swift_loader.worker.global_orders import orders_here
from swift_loader.worker.script import (
    ImportScript,
    ProcessMethod,
    how_to_import,
    names_in_workers,
    state,
)
from swift_loader.worker.signals import QUIET_SIGNALS
from swift_loader.worker.surroundings import importable_path, working_directory

__all__ = ["Process", "boot", "circumstances"]

# Nothing but `sys` and `gc`, which are built in, is imported before the search path is the
# script's: until then the working directory stands first, and there may be a `json.py`. The
# collector would find next to nothing: without it, all imports together take a fifth less.
_BOOT = (
    "import gc, sys; gc.disable(); sys.path[:] = eval(sys.argv.pop(1)); "
    "from swift_loader.worker.zygote import main_of_fresh; main_of_fresh(int(sys.argv.pop(1)))"
)


class Process(Protocol):
    """As much of `subprocess.Popen` as is needed here."""

    pid: int

    def poll(self) -> int | None:
        """The exit status, None as long as it runs."""

    def wait(self, timeout: float) -> int:
        """The exit status. Raises `subprocess.TimeoutExpired`."""

    def kill(self) -> None:
        """End it, if it runs."""


def boot(method: ProcessMethod) -> tuple[Channel, Process]:
    """Start the process: its control channel, and the process.

    Raises `ConfigError` where this process can't be forked, or is itself one that imports a script.
    """
    state.check_not_importing()
    if method == "fork":
        _check_forkable()
    how = how_to_import() if method == "main" else None
    control, theirs = channel_pair()
    with ExitStack() as undo:  # where there are no descriptors, or no processes, left
        undo.callback(control.close)
        with theirs:  # above the standard streams, one of which may be closed here and open there
            fd = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 3)
        # Blocked until it has its handlers, or Ctrl-C in its first second would kill it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, QUIET_SIGNALS)
        try:
            process: Process = _Forked(fd) if method == "fork" else _fresh(fd)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(fd)
        undo.pop_all()
    if how is not None:
        control.send(*pack(ImportScript(how, orders_here(names_in_workers("main")))))
    return control, process


def circumstances() -> Hashable:
    """What a process that is started now has of this one, and no `Spawn` brings it later."""
    streams = tuple(os.fstat(fd)[1:3] for fd in (1, 2) if is_stream(fd))
    where = working_directory(), tuple(importable_path())
    return frozenset(os.environ.items()), where, streams, usable_cpus()


def _fresh(control_fd: int) -> subprocess.Popen[bytes]:
    environ = dict(os.environ)
    # One process a core is the plan; a pool of threads in each would be too many.
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        environ.setdefault(name, "1")
    # A set of texts has one order in all workers: of all loaders, ranks and runs.
    environ.setdefault("PYTHONHASHSEED", "0")
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return subprocess.Popen(
        [sys.executable, *flags, "-c", _BOOT, ascii(importable_path()), str(control_fd)],
        pass_fds=(control_fd,),
        stdin=subprocess.DEVNULL,
        stdout=None if is_stream(1) else subprocess.DEVNULL,
        stderr=None if is_stream(2) else subprocess.DEVNULL,
        env=environ,
        cwd=None if working_directory() else "/",  # where there is none, MKL ends the process
    )


class _Forked:
    """A process that was forked from this one."""

    def __init__(self, control_fd: int) -> None:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()  # or what they hold is written twice
        from swift_loader.worker.zygote import main_of_fork

        self.pid = os.fork()
        if self.pid == 0:
            main_of_fork(control_fd)
        self._fd = os.pidfd_open(self.pid)
        self._status: int | None = None

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float) -> int:
        if self._status is None:
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            if not poll.poll(timeout * 1000):
                raise subprocess.TimeoutExpired("the process that workers are forked from", timeout)
            self._status = -1
            with suppress(ChildProcessError):  # the script waits for all children
                self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._fd)
        return self._status

    def kill(self) -> None:
        if self._status is None:
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)


def _check_forkable() -> None:
    """Raises `ConfigError`, or warns, where a process forked from this one would not be sound."""
    if not hasattr(os, "pidfd_open"):
        raise ConfigError(
            "start_method='fork' needs Linux: give start_method='main' or 'fresh' here"
        )
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise ConfigError(
            "start_method='fork': this process has initialised CUDA, and a process that is forked "
            "from it may not use CUDA and may hang. Give start_method='main' (or 'fresh'), or call "
            "start() before anything touches the GPU"
        )
    others = [
        thread.name
        for thread in threading.enumerate()
        if thread is not threading.current_thread() and not thread.name.startswith("swift_loader")
    ]
    if others:
        warnings.warn(
            f"start_method='fork': threads run in this process ({', '.join(others[:4])}). They do "
            "not run in the workers, and a lock that one holds now stays locked there for ever. "
            "Start the loader before the threads, or give start_method='main'",
            stacklevel=3,
        )
