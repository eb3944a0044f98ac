"""One loader after the other: the process that workers are forked from stays between them."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
from pathlib import Path

import psutil

from tests.process.scripts import (
    PREAMBLE,
    assert_gone,
    command,
    environment,
    living,
    printed_by,
)

SCRIPT = (
    PREAMBLE
    + """
import psutil

class Text:
    def __init__(self, text):
        self.text = text
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return self.text[i]

def wait_until(holds):
    deadline_s = time.monotonic() + 20
    while not holds() and time.monotonic() < deadline_s:
        time.sleep(0.01)

def below():
    # The process that workers are forked from, and what it has forked.
    return [child.pid for child in psutil.Process().children(recursive=True)]

def use(idle=1, **options):
    with SwiftLoader(Dataset, {"n": 8}, batch_size=2, **options) as loader:
        batches = [numbers.tolist() for _, numbers in loader]
        assert sorted(sum(batches, [])) == list(range(8)), batches
    wait_until(lambda: len(below()) <= idle)  # a worker that was killed is reaped a moment later
    return below()

def main():
    ...

if __name__ == "__main__":
    main()
"""
)


def script(main: str) -> str:
    return SCRIPT.replace("    ...\n", textwrap.indent(textwrap.dedent(main), "    "))


def test_the_next_loader_takes_its_workers_from_the_same_process(tmp_path: Path) -> None:
    out, err = printed_by(
        script("""
        print(use(start_method="fork"))  # such a one ends with its loader
        print(*use(), *use(), *use())
        print(*(len(use(2, start_method="fresh")) for _ in range(2)))
        """),
        tmp_path,
        warns=True,
    )
    forked, pids, of_two_methods = out.splitlines()
    assert forked == "[]"
    first, *others = pids.split()
    assert others == [first, first]
    assert of_two_methods == "2 2"
    assert not psutil.pid_exists(int(first))  # it has ended with the script
    assert err == ""


def test_another_one_is_started_where_it_would_be_born_to_something_else(tmp_path: Path) -> None:
    out, _ = printed_by(
        script("""
        def killed():
            os.kill(last, signal.SIGKILL)
            psutil.Process(last).wait(20)

        (last,) = use()
        for change in (
            lambda: os.environ.update(SOME_SETTING="1"),
            lambda: os.chdir("/"),
            lambda: sys.path.append("/nowhere"),
            lambda: os.dup2(os.open(os.devnull, os.O_WRONLY), 2),
            killed,
        ):
            change()
            (this,) = use()
            print(this != last, psutil.pid_exists(last))
            last = this
        """),
        tmp_path,
    )
    assert out == 5 * "True False\n"


def test_it_holds_no_bytes_of_a_loader_that_is_closed(tmp_path: Path) -> None:
    out, _ = printed_by(
        script("""
        with SwiftLoader(Text, {"text": bytes(1 << 27)}, batch_size=2) as loader:
            assert len(list(loader)) == 4
            (it,) = psutil.Process().children()
            held = it.memory_info().rss
        wait_until(lambda: held - it.memory_info().rss >= 1 << 27)
        print(held - it.memory_info().rss >= 1 << 27)
        """),
        tmp_path,
    )
    assert out == "True\n"


def test_it_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    path, found = tmp_path / "script.py", tmp_path / "pid"
    path.write_text(
        script(f"""
        (pid,) = use()
        open({str(found)!r}, "w").write(str(pid))
        if os.fork() == 0:  # has the descriptors of its parent
            time.sleep(60)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
        """)
    )
    run = subprocess.Popen(command(path), env=environment(), start_new_session=True)
    try:
        run.wait(timeout=60)
        pid = int(found.read_text())
        assert_gone(living([pid]))
    finally:
        os.killpg(run.pid, signal.SIGKILL)  # the one that was forked
