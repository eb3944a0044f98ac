"""Signals to processes, at random moments, from a thread of its own."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import psutil

__all__ = ["HOWS", "ROLES", "Hits", "Victims", "descendants", "hitting", "workers", "zygotes"]

LONGEST_PAUSE_S = 0.05
LONGEST_STOP_S = 0.3
HOWS = ("kill", "kill", "stop", "stop and kill", "segv")

Victims = Callable[[], Sequence[int]]


def descendants(pid: int) -> list[psutil.Process]:
    """All that descend from it, now."""
    with suppress(psutil.NoSuchProcess):
        return list(psutil.Process(pid).children(recursive=True))
    return []


def _runs_zygote(process: psutil.Process) -> bool:
    try:
        return "swift_loader.worker.zygote" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def zygotes(of: int | None = None) -> list[int]:
    """The processes that workers are forked from, of this process or another."""
    parent = of or os.getpid()
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(parent).children()
        return [child.pid for child in children if _runs_zygote(child)]
    return []


def workers(of: int | None = None) -> list[int]:
    """Those that were forked from them."""
    found = []
    for zygote in zygotes(of):
        with suppress(psutil.NoSuchProcess):
            found += [child.pid for child in psutil.Process(zygote).children()]
    return found


def ray_actors() -> list[int]:
    """Workers that Ray runs, in the cluster that this process has started."""
    found = []
    for process in descendants(os.getpid()):
        with suppress(psutil.Error):
            if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::RayWorker"):
                found.append(process.pid)
    return found


ROLES: dict[str, Victims] = {"workers": workers, "zygotes": zygotes, "ray actors": ray_actors}


class Hits:
    """So many hits, each on one of `victims`, in a way and at a time that `seed` chooses."""

    def __init__(
        self,
        victims: Victims,
        seed: int,
        count: int,
        hows: Sequence[str] = HOWS,
        afterwards: Callable[[int], None] | None = None,
    ) -> None:
        self._victims = victims
        self._random = random.Random(seed)
        self._left = count
        self._hows = hows
        self._afterwards = afterwards
        self._over = threading.Event()
        self.done: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, name="chaos")
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether all have been made."""
        return not self._thread.is_alive()

    def end(self) -> None:
        """Make no more."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while self._left > 0 and not self._over.wait(self._pause(LONGEST_PAUSE_S)):
            pids = sorted(self._victims())
            if not pids:
                continue
            how = self._random.choice(self._hows)
            with suppress(ProcessLookupError):
                self.hit(self._random.choice(pids), how)
                self._left -= 1

    def hit(self, pid: int, how: str) -> None:
        """One. A process that is stopped goes on, or is killed, a moment later."""
        if "stop" in how:
            os.kill(pid, signal.SIGSTOP)
            self._over.wait(self._pause(LONGEST_STOP_S))
        number = {"stop": signal.SIGCONT, "segv": signal.SIGSEGV}.get(how, signal.SIGKILL)
        os.kill(pid, number)
        self.done[how] += 1
        if how != "stop" and self._afterwards is not None:
            self._afterwards(pid)

    def _pause(self, longest_s: float) -> float:
        return self._random.random() ** 2 * longest_s


@contextmanager
def hitting(
    victims: Victims,
    seed: int,
    count: int,
    hows: Sequence[str] = HOWS,
    afterwards: Callable[[int], None] | None = None,
) -> Iterator[Hits]:
    """While the block runs. `afterwards` is told of each process that was ended."""
    hits = Hits(victims, seed, count, hows, afterwards)
    try:
        yield hits
    finally:
        hits.end()
