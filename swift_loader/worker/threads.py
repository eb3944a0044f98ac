"""Workers that are threads of the training process: `start_method="thread"`.

Role: part of the training process. For data sets that release the GIL (decoders, numpy, files) and
for free-threaded Python: a worker costs no process, and starts at once. It does what a worker
process does (see `swift_loader.worker.process`), and speaks over the same channel, to the same kind
of link. On its sentinel it sends, as the zygote does for a process:

- `Started(0)` when it runs;
- `Exited(status, traceback, 0)` when it ended.

What is a process's own can't be a thread's: `get_worker_info()` is None, so only a stream whose
shards the loader deals (`Shards`) can be read; the global random generators are left alone, and
`swift_loader.random_generators()` has those of the batch; and a thread can't be killed. One that
hangs is left to itself, and ends when the user's code returns.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import signal
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from swift_loader.batch.seeding import seed_own_generators
from swift_loader.batch.shipping import unpack
from swift_loader.errors import ConfigError
from swift_loader.transport.channel import Channel, ChannelClosedError, channel_pair
from swift_loader.transport.table import pack
from swift_loader.worker.birth import Birth, step
from swift_loader.worker.launched import BATCH_WORKER
from swift_loader.worker.place import Place
from swift_loader.worker.process import Worker
from swift_loader.worker.progress import Progress
from swift_loader.worker.recipe import build_dataset, recipe_of
from swift_loader.worker.zygote import Exited, Started

__all__ = ["LaunchedThread", "WorkerThreads"]

_END_GRACE_S = 1.0


class _Birth(Birth):
    """Touches nothing that the other threads of this process have, too."""

    def complete(self, payload: Callable[[], memoryview]) -> None:
        self._payload = payload
        seed_own_generators(self.seed)
        with step("unpacking the dataset's class and arguments"):
            self.recipe = recipe = recipe_of(unpack(payload()))
        with step("building the dataset"):
            self.dataset, self.nb_samples = build_dataset(recipe)
            if self.nb_samples is None and not recipe.by_shards:
                raise ConfigError(
                    f"start_method='thread' can't read a {type(self.dataset).__qualname__}: "
                    "threads have no worker info, so each of them would read the whole stream. "
                    "Give swift_loader.Shards, or another start_method"
                )
        if recipe.worker_init_fn is not None:
            with step("running worker_init_fn"):
                recipe.worker_init_fn(self._place.id_of(self._index))

    def _watching(self) -> contextlib.AbstractContextManager[None]:
        """A watch would be over the whole training process."""
        return contextlib.nullcontext()

    def _announce(self, dataset: Any) -> None:
        """There is one worker info in a process."""


class LaunchedThread:
    """See `swift_loader.worker.launched.Launched`."""

    def __init__(
        self, index: int, place: Place, payload_fd: int, context: contextvars.Context
    ) -> None:
        self.pid: int | None = None
        self._index = index
        self._place = place
        self._ending = threading.Lock()  # over the other end of the sentinel
        self._killed = False
        self.progress = Progress(memoryview(bytearray(Progress.NBYTES)))
        with contextlib.ExitStack() as undo:  # where there are no descriptors left
            self.channel, self._theirs = channel_pair()
            undo.callback(self.channel.close)
            undo.callback(self._theirs.close)
            self.sentinel, their_sentinel = channel_pair()
            self._their_sentinel = Channel(their_sentinel)
            undo.callback(self.sentinel.close)
            undo.callback(self._their_sentinel.close)
            payload_fd = os.dup(payload_fd)
            undo.callback(os.close, payload_fd)
            self._thread = threading.Thread(
                target=context.run,
                args=(self._run, payload_fd),
                name=f"swift_loader-worker-{place.consumer_index}-{index}",
                daemon=True,  # one that hangs in the user's code keeps no process from its end
            )
            self._thread.start()
            undo.pop_all()

    @property
    def is_current(self) -> bool:
        """Whether this thread calls."""
        return threading.current_thread() is self._thread

    @property
    def is_ending(self) -> bool:
        return True  # it closes its channel when it is past the user's code, and no sooner

    def stack(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        if frame is None:
            return "; its thread has ended"
        return "\n" + "".join(traceback.format_stack(frame)).rstrip()

    def kill(self) -> None:
        self._killed = True
        self._say_exited(-signal.SIGKILL, "")

    def close(self) -> None:
        self.channel.close()
        self.sentinel.close()
        if self._killed:
            return
        self._thread.join(_END_GRACE_S)
        if self._thread.is_alive():
            warnings.warn(
                f"{self._thread.name} is still in the data set's code. A thread can't be ended, so "
                f"it is left to itself, and ends when that returns. It is at{self.stack()}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _run(self, payload_fd: int) -> None:
        status, text = 1, ""
        try:
            with contextlib.suppress(ChannelClosedError):  # nobody wants it any more
                self._their_sentinel.send(*pack(Started(0)))
            birth = _Birth(self._place, self._index)
            channel = Channel(self._theirs)
            worker = Worker(self._index, self._place, channel, self.progress, birth)
            status = worker.live(payload_fd)
        except BaseException:  # noqa: BLE001 - the link says it
            text = traceback.format_exc()
        self._say_exited(status, text)

    def _say_exited(self, status: int, text: str) -> None:
        """Once: a thread that was given up may end later."""
        with self._ending:
            if self._their_sentinel.closed:
                return
            with contextlib.suppress(ChannelClosedError):  # nobody to tell
                self._their_sentinel.send(*pack(Exited(status, text, 0)))
            self._their_sentinel.close()


class WorkerThreads:
    """Where they come from: see `swift_loader.worker.launched.Launcher`."""

    def __init__(self) -> None:
        self._launched: weakref.WeakSet[LaunchedThread] = weakref.WeakSet()
        self._context: contextvars.Context | None = None

    def spawn(
        self, index: int, place: Place, payload_fd: int, module: str = BATCH_WORKER
    ) -> LaunchedThread:
        """Start one. Raises `OSError` where there is no room for it."""
        assert module == BATCH_WORKER
        # What a thread has of its own, such as numpy's `seterr`: as in the one that starts the
        # loader, though another one may replace a worker.
        self._context = self._context or contextvars.copy_context()
        thread = LaunchedThread(index, place, payload_fd, self._context.copy())
        self._launched.add(thread)
        return thread

    def lost(self, worker: LaunchedThread) -> None:
        """A thread tells of its end."""

    def release(self) -> None:
        """There is nothing but the threads."""

    @property
    def in_own_thread(self) -> bool:
        """Whether one of them calls."""
        return any(one.is_current for one in list(self._launched))
