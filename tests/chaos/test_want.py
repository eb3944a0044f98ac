"""Too few descriptors, processes, memory or disk: at every limit, the batches or a plain error."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.chaos.seeds import rounds
from tests.process.remote.endpoints import RunningEndpoint
from tests.process.scripts import ROOT, assert_gone, environment, family

WITHIN_S = 100.0

# Each limit in a process of its own, forked from one that has imported what takes long.
PREAMBLE = """
import os, resource, signal, sys, time, warnings
warnings.simplefilter("ignore")
import psutil, torch
from swift_loader import SwiftLoader
from swift_loader.errors import LoaderError
from tests import datasets

def loader(**options):
    return SwiftLoader(datasets.Numbers, {"n": 60}, batch_size=3, timeout=20, validate=False,
                       **{"worker_per_consumer": 2, **options})

def all_come(loader):
    return [i for batch in loader for i in batch[1].tolist()] == list(range(60))

def outcome(work):
    began_s = time.monotonic()
    try:
        told = "whole" if work() else "WRONG"
    except LoaderError as error:
        told = f"{type(error).__name__}: {' '.join(str(error).split())}"
    except BaseException as error:
        told = f"RAW {type(error).__name__}: {error}"
    if time.monotonic() - began_s > 60:
        told = "LATE " + told
    return told

def each(limits, work):
    for limit in limits:
        if (pid := os.fork()) == 0:
            try:
                print(limit, outcome(lambda: work(limit)), flush=True)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
"""


def run(script: str, folder: Path, through: Sequence[str] = ()) -> list[str]:
    """What it printed, line by line. Nothing of it may be left. `through`: words before it."""
    path = folder / "script.py"
    path.write_text(PREAMBLE + script)
    with subprocess.Popen(
        [*through, sys.executable, "-W", "ignore", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(),
    ) as process:
        try:
            out, err = process.communicate(timeout=WITHIN_S)
        finally:
            members = family(process.pid)
            with suppress(ProcessLookupError):
                process.kill()
            assert_gone(members)
    assert process.returncode == 0, out + err
    return out.splitlines()


def told(lines: list[str]) -> dict[int, str]:
    """By limit."""
    return {int(limit): what for limit, _, what in (line.partition(" ") for line in lines)}


DESCRIPTORS = """
import pickle
def work(limit):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    with loader(**options) as it:
        it.start(0, to_device=staged)
        return all_come(it)
staged = {staged}
options = {options}
"""


@pytest.mark.parametrize(
    ("options", "staged"),
    [
        ("{}", "None"),
        pytest.param(
            "{'batch_encoder': pickle.dumps, 'batch_decoder': pickle.loads}",
            "None",
            marks=pytest.mark.soak,
        ),
    ],
    ids=["plain", "decoder"],
)
def test_descriptors_that_do_not_suffice_are_told_at_construction(
    options: str, staged: str, tmp_path: Path
) -> None:
    script = DESCRIPTORS.format(options=options, staged=staged)
    script += "each([*range(6, 28), *range(28, 60, 4)], lambda n: work(n) if n < 27 else True)"
    found = told(run(script, tmp_path))
    for limit, what in found.items():
        if limit < 27:
            assert re.match(r"NoRoomError: this loader needs \d+ descriptors", what), what
            assert "worker_per_consumer" in what


@pytest.mark.parametrize(
    "staged", ["lambda batch, device: batch", pytest.param("None", marks=pytest.mark.soak)]
)
def test_as_many_descriptors_as_the_error_says_suffice(staged: str, tmp_path: Path) -> None:
    script = DESCRIPTORS.format(options="{}", staged=staged)
    script += """
def need(limit):
    try:
        return work(limit)
    except LoaderError as error:
        limit = int(str(error).split("needs ")[1].split()[0])
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    return work(limit)
each([30], need)
"""
    assert told(run(script, tmp_path))[30] == "whole"


def test_worker_that_can_not_be_replaced_now_is_replaced_later(tmp_path: Path) -> None:
    script = """
def pids(it):
    return [row.pid for row in it.stats().workers]

def work(limit):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    with loader(data_queue_size=4) as it:
        seen, taken = [], []
        for k, batch in enumerate(it):
            seen += batch[1].tolist()
            if k == 2:
                victim = pids(it)[0]
            if k == 3:
                try:
                    while True:
                        taken.append(os.open(os.devnull, os.O_RDONLY))
                except OSError:
                    for _ in range(2):  # the other worker may need one for what it sends
                        os.close(taken.pop())
                    os.kill(victim, signal.SIGKILL)
            if k == 12:
                for fd in taken:
                    os.close(fd)
        whole = seen == list(range(60))
        for _ in range(400):
            whole = whole and all_come(it)
            if it.stats().restarts and (pid := pids(it)[0]) and psutil.pid_exists(pid):
                return whole
        return False
each([64], work)
"""
    assert run(script, tmp_path) == ["64 whole"]


def test_descriptors_that_never_come_back_are_an_error_in_seconds(tmp_path: Path) -> None:
    script = """
def work(limit):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    with loader(data_queue_size=4, worker_per_consumer=1) as it:
        for k, batch in enumerate(it):
            if k == 2:
                victim = it.stats().workers[0].pid
            if k == 3:
                try:
                    while True:
                        os.open(os.devnull, os.O_RDONLY)
                except OSError:
                    os.kill(victim, signal.SIGKILL)
each([64], work)
"""
    (line,) = run(script, tmp_path)
    assert re.match(r"64 NoRoomError: worker 0 can't be started, .*ulimit -n", line)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user who may have few")
def test_processes_that_are_not_to_be_had_are_an_error_in_seconds(tmp_path: Path) -> None:
    script = """
def work(limit):
    it = loader(start_method="fork")
    os.setuid(65534)
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
    with it:
        return all_come(it)
each([1, 2], work)
"""
    for line in run(script, tmp_path):
        assert re.match(r"\d (whole|NoRoomError)", line), line


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_limit_of_descriptors_for_long(tmp_path: Path) -> None:
    for seed in rounds(2):
        options = ["{}", "{'batch_encoder': pickle.dumps, 'batch_decoder': pickle.loads}"][seed % 2]
        script = DESCRIPTORS.format(options=options, staged="None")
        found = {}
        for low in range(6, 60, 9):
            found |= told(run(script + f"each(range({low}, {low + 9}), work)", tmp_path))
        print(found)
        assert all(what == "whole" or what.startswith("NoRoom") for what in found.values()), found


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("what", ["RLIMIT_FSIZE", "RLIMIT_AS", "RLIMIT_DATA"])
def test_every_limit_of_memory_and_files_for_long(what: str, tmp_path: Path) -> None:
    script = f"""
def work(limit):
    resource.setrlimit(resource.{what}, (limit << 10, limit << 10))
    with loader(benchmark_file={str(tmp_path / "file")!r}) as it:
        return all_come(it)
"""
    low, high = {"RLIMIT_FSIZE": (0, 13)}.get(what, (12, 24))
    limits = [0, *(1 << power for power in range(low, high))]
    found = {}
    for i in range(0, len(limits), 4):
        found |= told(run(script + f"each({limits[i : i + 4]}, work)", tmp_path))
    print(found)
    assert "whole" in found.values()
    for outcome in found.values():
        assert outcome == "whole" or "Error: " in outcome, found
        assert not outcome.startswith("LATE"), found


@pytest.mark.parametrize("nb_descriptors", [160])
def test_endpoint_with_few_descriptors_serves_or_says_why(
    nb_descriptors: int, tmp_path: Path
) -> None:
    serve(nb_descriptors, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "nb_descriptors", [24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 192, 256, 512]
)
def test_endpoint_at_every_limit_for_long(nb_descriptors: int, tmp_path: Path) -> None:
    serve(nb_descriptors, tmp_path)


def serve(nb_descriptors: int, folder: Path) -> None:
    """A training, one that comes again, and a worker that is killed between them."""
    pytest.importorskip("zmq")
    with RunningEndpoint(2, nb_descriptors=nb_descriptors) as endpoint:
        if endpoint.process.poll() is not None or not endpoint.port:
            assert endpoint.process.wait(20) in (1, 2)
            endpoint._reader.join()
            assert not any("Traceback" in line for line in endpoint.log), endpoint.log
            return
        script = f"""
def work(limit):
    with loader(worker_per_consumer=0, remote_workers=[{endpoint.address!r}],
                remote_timeout=3) as it:
        whole = all_come(it)
        for zygote in psutil.Process({endpoint.pid}).children():
            for worker in zygote.children():
                worker.kill()
        return whole and all_come(it) and all_come(it)
each(range(2), work)
"""
        lines = run(script, folder)
        print(nb_descriptors, lines)
        for line in lines:
            assert line.endswith("whole") or re.search(r"descriptors|room|open files", line), line
        assert endpoint.process.poll() is None
    assert not any("Traceback" in line for line in endpoint.log), endpoint.log
