"""Endpoints as processes, run as a user would run them."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType

import psutil

from tests.process.scripts import ROOT, environment

ENDS_WITHIN_S = 15.0


class RunningEndpoint:
    """``swift-loader serve`` on a free port of this machine, or on `port`, or at `bind`.

    `nb_descriptors` is its limit, as ``ulimit -n`` sets it; `limits` are more words for the shell
    that starts it.
    """

    def __init__(
        self,
        workers: int = 2,
        key: Path | None = None,
        port: int = 0,
        nb_descriptors: int | None = None,
        metrics: str | None = None,
        bind: str = "",
        limits: str = "",
    ) -> None:
        self.key = key
        bind = bind or f"tcp://127.0.0.1:{port}"
        arguments = ["--workers", str(workers), "--bind", bind]
        if metrics is not None:
            arguments += ["--metrics", metrics]
        limit = []
        if nb_descriptors is not None:
            limits += f"ulimit -n {nb_descriptors};"
        if limits:
            limit = ["sh", "-c", f'{limits} exec "$@"', "sh"]
        if key is not None:
            arguments += ["--key", str(key)]
        self.process = subprocess.Popen(
            [*limit, sys.executable, "-m", "swift_loader.cli", "serve", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment(),
        )
        assert self.process.stdout is not None
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read_log)
        self._reader.start()
        scheme = bind.partition("://")[0]
        said = self.process.stdout.readline().strip()
        self.address = f"{scheme}://{said}"
        self.port = int(said.rpartition(":")[2] or 0) if scheme == "tcp" else 0

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        self.log += self.process.stderr

    @property
    def pid(self) -> int:
        return self.process.pid

    def workers(self) -> list[psutil.Process]:
        """Worker processes, over all sessions: the children of the process that is forked from."""
        return [
            grandchild
            for child in psutil.Process(self.pid).children()
            for grandchild in child.children()
        ]

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Without a chance to say so."""
        self.process.kill()
        self.process.wait(ENDS_WITHIN_S)

    def end(self, number: int = signal.SIGTERM) -> int:
        """As a service manager would; returns the exit status."""
        self.process.send_signal(number)
        return self.process.wait(ENDS_WITHIN_S)

    def __enter__(self) -> RunningEndpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            try:
                self.end()
            except subprocess.TimeoutExpired:
                self.kill()
        self._reader.join()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()
