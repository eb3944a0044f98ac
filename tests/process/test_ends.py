"""However a training script ends, nothing is left, and soon."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.process.scripts import (
    PREAMBLE,
    ROOT,
    assert_gone,
    command,
    environment,
    family,
    running,
    wait_for,
)

ENDLESS = """
loader = SwiftLoader(Dataset, {"n": 10**9}, batch_size=4, worker_per_consumer=2, validate=False)
iterator = iter(loader)
next(iterator)
print("running", flush=True)
"""


def run(script: str, folder: Path, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Run to the end; nothing may be left of its family."""
    with running(script, folder) as process:
        out, err = process.communicate(timeout=timeout_s)
        assert not family(process.pid)
        return subprocess.CompletedProcess("", process.returncode, out, err)


def test_ctrl_c_shows_one_traceback_and_leaves_nothing(tmp_path: Path) -> None:
    with running(ENDLESS + "while True: next(iterator)\n", tmp_path) as process:
        wait_for(process, "running")
        members = family(process.pid)
        assert len(members) >= 4  # itself, the zygote, two workers
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=20)
        assert_gone(members)
    assert err.count("Traceback") == 1
    assert "KeyboardInterrupt" in err.splitlines()[-1]


def test_workers_serve_on_after_sigterm_to_the_group(tmp_path: Path) -> None:
    script = (
        """
# Unlike `print`, `os.write` may be called in a handler that interrupts a `print`.
signal.signal(signal.SIGTERM, lambda *a: os.write(1, b"terminated\\n"))
"""
        + ENDLESS
        + """
for _ in range(3000): next(iterator)
time.sleep(0.5)
for _ in range(3000): next(iterator)
print("wrote a checkpoint", flush=True)
loader.close()
"""
    )
    with running(script, tmp_path) as process:
        wait_for(process, "running")
        os.killpg(process.pid, signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert "wrote a checkpoint" in out, err
    assert process.returncode == 0
    assert not err


def test_killed_training_process_takes_everything_with_it(tmp_path: Path) -> None:
    script = """
loaders = [SwiftLoader(Dataset, {"n": 1000, "delay_s": 30}, worker_per_consumer=2, validate=False,
                       multithread=multithread) for multithread in (True, False)]
for loader in loaders:
    loader.start(0, to_device=lambda batch, device: batch)
busy = SwiftLoader(Dataset, {"n": 10**9}, worker_per_consumer=2, validate=False)
next(iter(busy))
import psutil
while len(psutil.Process().children(recursive=True)) < 7:  # the zygote and six workers
    time.sleep(0.01)
print("running", flush=True)
time.sleep(100)
"""
    with running(script, tmp_path) as process:
        wait_for(process, "running")
        members = family(process.pid)
        process.send_signal(signal.SIGKILL)
        assert_gone(members)


@pytest.mark.parametrize(
    "ending",
    [
        pytest.param("raise ValueError('in the loop')", id="exception"),
        pytest.param("sys.exit(0)", id="exit", marks=pytest.mark.soak),
        pytest.param("del plain, staged, iterators, iterator", id="del"),
        pytest.param("pass", id="end of script with the iterators alive"),
        pytest.param(
            "plain.close(); staged.close(); staged.close()", id="close", marks=pytest.mark.soak
        ),
        pytest.param("sys.modules.clear()", id="modules torn down"),
    ],
)
def test_script_ends_promptly_and_leaves_nothing(ending: str, tmp_path: Path) -> None:
    script = """
plain = SwiftLoader(Dataset, {"n": 10**9}, batch_size=4, worker_per_consumer=2, validate=False)
staged = SwiftLoader(Dataset, {"n": 10**9}, batch_size=4, worker_per_consumer=2, validate=False)
staged.start(0, to_device=lambda b, d: b)
iterators = [iter(plain), iter(staged)]
for iterator in iterators: next(iterator)
print("running", flush=True)
"""
    script += ending
    with running(script, tmp_path) as process:
        wait_for(process, "running")
        members = family(process.pid)
        _, err = process.communicate(timeout=20)
        assert_gone(members)
    assert process.returncode == (1 if "raise" in ending else 0), err
    if "raise" in ending:
        assert err.count("Traceback") == 1
    elif "modules" not in ending:
        assert not err


def test_fifty_early_breaks_in_a_row(tmp_path: Path) -> None:
    result = run(
        """
loader = SwiftLoader(Dataset, {"n": 1000}, batch_size=4, worker_per_consumer=2, shuffle=True)
for _ in range(50):
    for batch in loader:
        break
print(len(loader), loader.stats().batches)
""",
        tmp_path,
    )
    assert result.stdout.split() == ["250", "50"]
    assert not result.stderr


def test_five_hundred_tiny_epochs(tmp_path: Path) -> None:
    result = run(
        """
loader = SwiftLoader(Dataset, {"n": 6}, batch_size=2, worker_per_consumer=2, shuffle=True)
seen = set()
for _ in range(500):
    order = tuple(i for batch in loader for i in batch[1].tolist())
    assert sorted(order) == list(range(6))
    seen.add(order)
print(len(seen) > 50)
""",
        tmp_path,
    )
    assert result.stdout.strip() == "True", result.stderr


def test_user_fork_in_the_middle_disturbs_neither_side(tmp_path: Path) -> None:
    result = run(
        ENDLESS
        + """
pid = os.fork()
if pid == 0:
    try:
        next(iterator)
    except RuntimeError as error:
        print("child:", "forked" in str(error), flush=True)
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
for _ in range(100): next(iterator)
loader.close()
print("parent: fine")
""",
        tmp_path,
    )
    assert "child: True" in result.stdout, result.stderr
    assert "parent: fine" in result.stdout, result.stderr


def test_fork_that_outlives_the_training_process_keeps_no_worker_alive(tmp_path: Path) -> None:
    script = (
        ENDLESS
        + """
pid = os.fork()
if pid == 0:
    time.sleep(100)
print(pid, flush=True)
print("forked", flush=True)
time.sleep(100)
"""
    )
    with running(script, tmp_path) as process:
        wait_for(process, "running")
        assert process.stdout is not None
        child = int(process.stdout.readline())
        wait_for(process, "forked")
        members = [p for p in family(process.pid) if p.pid != child]
        process.send_signal(signal.SIGKILL)
        try:
            assert_gone(members)
        finally:
            psutil.Process(child).kill()


def test_starts_from_a_thread_and_from_a_daemonic_process(tmp_path: Path) -> None:
    result = run(
        """
import multiprocessing
def work():
    with SwiftLoader(Dataset, {"n": 20}, batch_size=4) as loader:
        print(sorted(i for b in loader for i in b[1].tolist()) == list(range(20)), flush=True)
if __name__ == "__main__":
    thread = threading.Thread(target=work)
    thread.start(); thread.join()
    process = multiprocessing.get_context("fork").Process(target=work, daemon=True)
    process.start(); process.join()
    print(process.exitcode)
""",
        tmp_path,
    )
    assert result.stdout.split() == ["True", "True", "0"], result.stderr


def test_heavy_threads_in_the_training_process_do_not_deadlock(tmp_path: Path) -> None:
    result = run(
        """
torch.set_num_threads(4)
a = torch.rand(600, 600)
for _ in range(5): a = (a @ a).softmax(1)
threads = [threading.Thread(target=lambda: [torch.rand(300, 300) @ torch.rand(300, 300)
           for _ in range(200)]) for _ in range(3)]
for thread in threads: thread.start()
with SwiftLoader(Dataset, {"n": 200}, batch_size=4, worker_per_consumer=2) as loader:
    print(sum(1 for _ in loader))
for thread in threads: thread.join()
""",
        tmp_path,
    )
    assert result.stdout.strip() == "50", result.stderr


def test_dataset_that_opens_a_process_pool_works_and_leaves_nothing(tmp_path: Path) -> None:
    result = run(
        """
import multiprocessing
class Pooled(Dataset):
    def __init__(self, n):
        super().__init__(n)
        self.pool = None
    def __getitem__(self, i):
        if self.pool is None:
            self.pool = multiprocessing.get_context("fork").Pool(2)
        return self.pool.apply(abs, (-i,))
with SwiftLoader(Pooled, {"n": 20}, batch_size=4, worker_per_consumer=2, validate=False) as loader:
    print(sorted(i for b in loader for i in b.tolist()) == list(range(20)))
""",
        tmp_path,
    )
    assert result.stdout.strip() == "True", result.stderr


def test_killed_zygote_costs_no_sample(tmp_path: Path) -> None:
    result = run(
        """
import psutil
loader = SwiftLoader(Dataset, {"n": 4000}, batch_size=2, worker_per_consumer=2)
iterator = iter(loader)
seen = next(iterator)[1].tolist()
(zygote,) = psutil.Process().children()
zygote.kill()
for batch in iterator: seen += batch[1].tolist()
print(seen == list(range(4000)), loader.stats().restarts)
""",
        tmp_path,
    )
    assert result.stdout.split() == ["True", "2"], result.stderr


WITHOUT_GUARD = (
    PREAMBLE
    + """
scale = 3
def collate(samples):
    return torch.tensor([i * scale for _, i in samples])
with SwiftLoader(Dataset, {"n": 12}, batch_size=4, worker_per_consumer=2, collate_fn=collate) as l:
    print(sum(int(b.sum()) for b in l))
"""
)


@pytest.mark.parametrize(
    "how",
    [
        "script",
        "stdin",
        pytest.param("-c", marks=pytest.mark.soak),
        pytest.param("ipython", marks=pytest.mark.soak),
    ],
)
def test_classes_of_main_travel_however_the_code_is_run(how: str, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(WITHOUT_GUARD)
    words, text = {
        "script": (command(path), None),
        "-c": ([*command("-c"), WITHOUT_GUARD], None),
        "stdin": (command("-"), WITHOUT_GUARD),
        "ipython": (
            [*command("-c"), f"exec(compile({WITHOUT_GUARD!r}, '<ipython-input-1>', 'exec'))"],
            None,
        ),
    }[how]
    result = subprocess.run(
        words, input=text, capture_output=True, text=True, timeout=60, cwd=ROOT, env=environment()
    )
    assert result.stdout.strip() == str(3 * sum(range(12))), result.stderr
    assert not result.stderr


def test_two_runs_at_once_and_one_after_a_killed_run(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    with running(ENDLESS + "time.sleep(100)", folders[0]) as first:
        wait_for(first, "running")
        with running(ENDLESS + "for _ in range(500): next(iterator)", folders[1]) as second:
            wait_for(second, "running")
            first.send_signal(signal.SIGKILL)
            _, err = second.communicate(timeout=30)
            assert second.returncode == 0, err
    result = run(ENDLESS + "for _ in range(500): next(iterator)", tmp_path)
    assert result.returncode == 0, result.stderr


def test_signals_to_the_whole_group_end_no_worker(tmp_path: Path) -> None:
    with running(
        """
import subprocess
class Signalled(Dataset):
    def __init__(self, n):
        super().__init__(n)
        self.mine = 0
        signal.signal(signal.SIGUSR2, self.count)  # a data set's own
        asked = [sys.executable, "-c",
                 "import signal as s; print(s.getsignal(s.SIGUSR1) == s.SIG_DFL)"]
        self.of_programs = subprocess.check_output(asked, text=True)
    def count(self, number, frame):
        self.mine += 1
    def __getitem__(self, i):
        return os.getpid(), self.mine, self.of_programs

loader = SwiftLoader(Signalled, {"n": 400}, worker_per_consumer=3, validate=False)
named = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF,
         signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT, signal.SIGXCPU, signal.SIGIO,
         signal.SIGPWR, signal.SIGRTMIN, signal.SIGRTMIN + 1, signal.SIGRTMAX]
for number in named:
    signal.signal(number, lambda *a: None)
workers = set()
while len(workers) < 3:  # all are at work
    workers |= {int(pid) for pid, *_ in loader}
for _ in range(3):
    for number in named:
        os.killpg(0, number)
after = list(loader)
assert max(int(mine) for _, mine, _ in after), after[-1]
assert "True" in after[0][2][0]
assert loader.stats().restarts == 0
print("whole", flush=True)
""",
        tmp_path,
    ) as process:
        wait_for(process, "whole")


def test_what_a_sample_has_started_ends_with_its_worker(tmp_path: Path) -> None:
    with running(
        """
import psutil, subprocess
class Starts(Dataset):
    def __getitem__(self, i):
        started = [subprocess.Popen(["sleep", "99"]),
                   subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 98 & wait"])]
        return [p.pid for p in started], os.getpid()

loader = SwiftLoader(Starts, {"n": 2}, worker_per_consumer=1, validate=False)
pids, worker = zip(*[(batch[0], int(batch[1])) for batch in loader])
started = [psutil.Process(int(pid)) for four in pids for pid in four]
started += [child for one in started for child in one.children()]
assert len(started) >= 4, started
os.kill(worker[0], signal.SIGKILL)
_, alive = psutil.wait_procs(started, 6)
if not alive:
    with SwiftLoader(Starts, {"n": 1}, validate=False) as other:
        started = [psutil.Process(int(pid)) for batch in other for pid in batch[0]]
    _, alive = psutil.wait_procs(started, 6)
print([one.status() for one in alive] or "gone", flush=True)
""",
        tmp_path,
    ) as process:
        wait_for(process, "gone")


def test_output_that_nobody_reads_stops_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    with running(
        """
class Talks(Dataset):
    def __getitem__(self, i):
        sys.stderr.write("x" * 100_000)
        sys.stdout.write("x" * 100_000)
        return i

sys.stdout = os.fdopen(os.dup(1), "w")
os.dup2(os.pipe()[1], 1)
loader = SwiftLoader(Talks, {"n": 100}, worker_per_consumer=2, validate=False, timeout=20)
assert len(list(loader)) == 100
print("all came", flush=True)
time.sleep(99)
""",
        tmp_path,
    ) as process:
        wait_for(process, "all came")
        members = family(process.pid)
        assert len(members) == 4
        zygote = next(one for one in members[1:] if one.ppid() == process.pid)
        zygote.suspend()
        process.kill()
        assert_gone(members)


def test_odd_surroundings_are_no_hindrance(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    (folder / "json.py").write_text("print('imported from the working directory', flush=True)")
    script = tmp_path / "script.py"
    script.write_text(
        PREAMBLE
        + """
import pathlib, shutil
class Where(Dataset):
    def __getitem__(self, i):
        return [str(p) for p in sys.path[:2]], torch.get_num_threads()

sys.path[:0] = [pathlib.Path("/of/a/path"), b"/of/bytes"]
first = SwiftLoader(Where, {"n": 2})
shutil.rmtree(os.getcwd())
second = SwiftLoader(Where, {"n": 2}, validate=False)
for loader in (first, second):
    for paths, threads in loader:
        assert paths[0][0] == "/of/a/path" and paths[1][0] == "b'/of/bytes'", paths
        assert int(threads) == 2
for loader in (first, second):
    loader.close()
_, first = next(iter(SwiftLoader(Dataset, {"n": 2})))  # of another process to fork from
print("done", int(first))
"""
    )
    result = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", *command(script)],  # without a stderr
        cwd=folder,
        env={**environment(), "OMP_NUM_THREADS": "2,3,2"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert result.stdout == "done 0\n"


@pytest.mark.parametrize("method", ["main", "fork"])
def test_streams_that_are_closed_at_the_start_are_no_hindrance(method: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        PREAMBLE
        + f"""
class Talks(Dataset):
    def __getitem__(self, i):
        print("to stdout")
        print("to stderr", file=sys.stderr)
        return i

if __name__ == "__main__":
    log = {{"stdout": True}}
    with SwiftLoader(Talks, {{"n": 20}}, validate=False, timeout=20, start_method={method!r},
                     logger=log, benchmark=True) as loader:
        whole = [int(batch) for batch in loader] == list(range(20))
    open("whole", "w").write(str(whole))
"""
    )
    words = ["sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh", *command(script)]
    assert subprocess.call(words, cwd=tmp_path, env=environment(), timeout=60) == 0
    assert (tmp_path / "whole").read_text() == "True"
