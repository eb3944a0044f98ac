"""Which signals end a worker: those that say so, and none that is meant for the training process.

A terminal or a batch system signals the whole group: Ctrl-C, Slurm's notice before it preempts,
Grid Engine's before the time is up (SIGXCPU), a timer. The training process decides what that
means; it may be writing a checkpoint, and wants batches. So workers and the process they are forked
from do nothing, by a handler and not by `SIG_IGN`, which programs that a data set starts would
inherit. A data set may set handlers of its own.
"""

from __future__ import annotations

import ctypes
import mmap
import signal
import sys
from typing import Any

__all__ = ["QUIET_SIGNALS", "STACK_SIGNAL", "be_quiet", "do_nothing", "make_room", "restore"]

# Asks a worker for its Python stacks; a real-time signal, so that no dataset's own is taken.
STACK_SIGNAL = signal.SIGRTMIN + 9 if sys.platform == "linux" else signal.SIGUSR2

_ROOM_BYTES = 1 << 20
_room: mmap.mmap | None = None
_NAMED = (
    "SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM",
    "SIGPROF", "SIGXCPU", "SIGIO", "SIGPWR",
)  # fmt: skip
_REAL_TIME = range(signal.SIGRTMIN, signal.SIGRTMAX + 1) if sys.platform == "linux" else ()
_THERE = {int(number) for number in signal.Signals if number.name in _NAMED}  # of this system
# Also `STACK_SIGNAL`, until a worker shows its stacks: one that is being born is asked too soon.
QUIET_SIGNALS = frozenset(_THERE | {*_REAL_TIME})


def do_nothing(number: int, frame: Any) -> None:
    """A handler."""


def be_quiet() -> None:
    """From now on these signals do nothing here. Native code goes on with what it waits for."""
    for number in QUIET_SIGNALS:
        signal.signal(number, do_nothing)
        signal.siginterrupt(number, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, QUIET_SIGNALS)


class _Stack(ctypes.Structure):
    _fields_ = [
        ("sp", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("size", ctypes.c_size_t),
    ]


def make_room() -> None:
    """Linux: room for the handlers of all signals at once, which `faulthandler` has not.

    Python's handlers run on its alternate stack of 16 KB, where each takes up to 11 KB: signals
    that come together, as a batch system sends them, would end the process by SIGSEGV.
    """
    global _room
    if sys.platform == "linux":
        _room = mmap.mmap(-1, _ROOM_BYTES)  # takes memory when it is used
        at = ctypes.addressof(ctypes.c_char.from_buffer(_room))
        stack = _Stack(at, 0, _ROOM_BYTES)
        ctypes.CDLL(None, use_errno=True).sigaltstack(ctypes.byref(stack), None)


def restore() -> None:
    """In a process that a data set has forked, which is nobody's worker: it ends as it is told."""
    for number in QUIET_SIGNALS:
        if signal.getsignal(number) is do_nothing:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
