"""One function call in a fresh process.

:func:`call` forks: the process that runs the benchmarks has imported torch and done nothing with
it, so a run costs its window and not an import. :func:`call_from_nothing` starts an interpreter,
for whoever measures memory. Either way the run leads a process group of its own, which is ended
with it, so that no run leaves anything beside the next; what it writes to stderr is shown only when
it fails.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch  # noqa: F401  (imported once, here, for all runs)

_ROOT = Path(__file__).parents[1]
_NB_STDERR_CHARS = 4_000
_GRACE_S = 2.0  # for a loader's own end after its answer; then it is ended


class RunFailedError(RuntimeError):
    """The call raised, ended without an answer, or took too long. Carries what it said."""


def call(function: Callable[..., Any], *, timeout_s: float = 120.0, **arguments: Any) -> Any:
    """What ``function(**arguments)`` returns in a forked process.

    Raises :class:`RunFailedError` when it raises, dies, or takes more than `timeout_s` seconds.
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    with tempfile.TemporaryFile() as stderr:
        process = context.Process(
            target=_answer, args=(there, stderr.fileno(), function, arguments)
        )
        process.start()
        there.close()
        try:
            if not here.poll(timeout_s):
                raise RunFailedError(
                    f"{function.__qualname__}: no answer in {timeout_s:g} s\n{_tail(stderr)}"
                )
            worked, answer = here.recv()
            process.join(_GRACE_S)
        except EOFError:
            process.join()
            raise RunFailedError(
                f"{function.__qualname__}: ended with {process.exitcode}\n{_tail(stderr)}"
            ) from None
        finally:
            _end_group(process.pid)
            process.join()
            here.close()
        if not worked:
            raise RunFailedError(f"{answer}\n{_tail(stderr)}")
    return answer


def call_from_nothing(
    function: Callable[..., Any], *, timeout_s: float = 120.0, **arguments: Any
) -> Any:
    """The same in an interpreter of its own; `function` and `arguments` are pickled."""
    with tempfile.TemporaryFile() as stderr, tempfile.NamedTemporaryFile() as answer_file:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.fresh", answer_file.name],
            stdin=subprocess.PIPE,
            stdout=stderr,
            stderr=stderr,
            start_new_session=True,
            cwd=_ROOT,
        )
        try:
            process.communicate(pickle.dumps((function, arguments)), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise RunFailedError(
                f"{function.__qualname__}: no answer in {timeout_s:g} s\n{_tail(stderr)}"
            ) from None
        finally:
            _end_group(process.pid)
            process.wait()
        if process.returncode:
            raise RunFailedError(
                f"{function.__qualname__}: ended with {process.returncode}\n{_tail(stderr)}"
            )
        return pickle.loads(Path(answer_file.name).read_bytes())


def _answer(
    connection: Connection, stderr: int, function: Callable[..., Any], arguments: dict[str, Any]
) -> None:
    os.setsid()
    os.dup2(stderr, 2)
    try:
        answer = (True, function(**arguments))
    except Exception:  # noqa: BLE001 (sent on, and raised by `call`)
        answer = (False, traceback.format_exc())
    connection.send(answer)
    connection.close()


def _tail(stderr: Any) -> str:
    stderr.seek(0)
    return str(stderr.read().decode(errors="replace")[-_NB_STDERR_CHARS:])


def _end_group(group: int | None) -> None:
    """End whatever of the run is still there."""
    try:
        if group is not None:
            os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass  # nothing is left


def main() -> None:
    """Answer the one call that standard input holds, into the file that the argument names."""
    function, arguments = pickle.load(sys.stdin.buffer)
    Path(sys.argv[1]).write_bytes(pickle.dumps(function(**arguments)))


if __name__ == "__main__":
    main()
