"""One loader after the other: the process that workers are forked from stays between them."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
from pathlib import Path

import psutil
import pytest

from tests.process.scripts import PREAMBLE, assert_gone, command, environment, printed_by

SCRIPT = (
    PREAMBLE
    + """
import psutil

def below():
    # The process that workers are forked from, and what it has forked.
    return [child.pid for child in psutil.Process().children(recursive=True)]

def use(**options):
    with SwiftLoader(Dataset, {"n": 8}, batch_size=2, **options) as loader:
        batches = [numbers.tolist() for _, numbers in loader]
        assert sorted(sum(batches, [])) == list(range(8)), batches
    deadline_s = time.monotonic() + 20
    while len(below()) > 1 and time.monotonic() < deadline_s:
        time.sleep(0.01)  # a worker that was killed is reaped a moment later
    return below()

def main():
    ...

if __name__ == "__main__":
    main()
"""
)


def script(main: str) -> str:
    return SCRIPT.replace("    ...\n", textwrap.indent(textwrap.dedent(main), "    "))


@pytest.mark.parametrize("method", ["main", "fresh"])
def test_the_next_loader_takes_its_workers_from_the_same_process(
    method: str, tmp_path: Path
) -> None:
    out, err = printed_by(
        script(f"""
        seen = [use(start_method="{method}") for _ in range(3)]
        print(*sum(seen, []))
        """),
        tmp_path,
        warns=True,
    )
    pids = [int(word) for word in out.split()]
    assert len(pids) == 3
    assert len(set(pids)) == 1
    assert not psutil.pid_exists(pids[0])  # it has ended with the script
    assert err == ""


@pytest.mark.parametrize(
    "change",
    [
        'os.environ["SOME_SETTING"] = "1"',
        'os.chdir("/")',
        'sys.path.append("/nowhere")',
        "os.dup2(os.open(os.devnull, os.O_WRONLY), 2)",
    ],
)
def test_another_one_is_started_where_it_would_be_born_to_something_else(
    change: str, tmp_path: Path
) -> None:
    out, _ = printed_by(
        script(f"""
        (first,) = use()
        {change}
        (second,) = use()
        print(first != second, psutil.pid_exists(first))
        """),
        tmp_path,
    )
    assert out == "True False\n"


def test_another_one_is_started_where_it_was_killed_between_two_loaders(tmp_path: Path) -> None:
    out, _ = printed_by(
        script("""
        (first,) = use()
        os.kill(first, signal.SIGKILL)
        psutil.Process(first).wait(20)
        (second,) = use()
        print(first != second)
        """),
        tmp_path,
    )
    assert out == "True\n"


def test_a_forked_one_ends_with_its_loader(tmp_path: Path) -> None:
    out, _ = printed_by(script('print(use(start_method="fork"))'), tmp_path)
    assert out == "[]\n"


def test_it_holds_no_bytes_of_a_loader_that_is_closed(tmp_path: Path) -> None:
    out, _ = printed_by(
        """
import time, psutil
from swift_loader import SwiftLoader

class Text:
    def __init__(self, text):
        self.text = text
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return self.text[i]

if __name__ == "__main__":
    with SwiftLoader(Text, {"text": bytes(1 << 28)}, batch_size=2) as loader:
        assert len(list(loader)) == 4
        (it,) = psutil.Process().children()
        held = it.memory_info().rss
    deadline_s = time.monotonic() + 20
    while held - it.memory_info().rss < 1 << 28 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    print(held - it.memory_info().rss >= 1 << 28)
""",
        tmp_path,
    )
    assert out == "True\n"


@pytest.mark.parametrize("ending", ["os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_it_ends_with_a_process_that_cleans_nothing_up(ending: str, tmp_path: Path) -> None:
    found = tmp_path / "pid"
    text = script(f"""
    (pid,) = use()
    open({str(found)!r}, "w").write(str(pid))
    if os.fork() == 0:  # has the descriptors of its parent
        time.sleep(60)
        os._exit(0)
    {ending}
    """)
    path = tmp_path / "script.py"
    path.write_text(text)
    run = subprocess.Popen(command(path), env=environment(), start_new_session=True)
    run.wait(timeout=60)
    pid = int(found.read_text())
    try:
        assert_gone([psutil.Process(pid)] if psutil.pid_exists(pid) else [])
    finally:
        os.killpg(run.pid, signal.SIGKILL)  # the one that was forked


def test_a_loader_is_built_at_once_after_another(tmp_path: Path) -> None:
    """Not a time, but work: torch is not imported again."""
    out, _ = printed_by(
        script("""
        (pid,) = use()
        it = psutil.Process(pid)
        before_s = sum(it.cpu_times()[:2])
        for _ in range(5):
            use()
        print(sum(it.cpu_times()[:2]) < 2 * before_s)
        """),
        tmp_path,
    )
    assert out == "True\n"
