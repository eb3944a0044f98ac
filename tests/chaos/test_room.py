"""Too little room on a disk or in memory: at each step the batches or a plain error, in seconds."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.chaos.test_want import run, told
from tests.process.remote.endpoints import RunningEndpoint

MOUNTS = ("unshare", "-m")  # what is mounted is seen by these processes alone
CGROUP = Path("/sys/fs/cgroup/memory")  # of version 1

may_mount = pytest.mark.skipif(
    os.geteuid() != 0 or subprocess.run([*MOUNTS, "true"], capture_output=True).returncode != 0,
    reason="mounting in a namespace of its own is not permitted here",
)
may_group = pytest.mark.skipif(
    not os.access(CGROUP, os.W_OK), reason="groups of processes can't be made here"
)

# All files that a loader may write lie in a file system with so many inodes, or bytes.
ROOM = """
import subprocess
from swift_loader import Cache
os.environ.update(TMPDIR=FOLDER, XDG_RUNTIME_DIR=FOLDER)

def work(limit):
    mount = ["mount", "-t", "tmpfs", "-o", OPTION.format(limit), "none", FOLDER]
    subprocess.run(mount, check=True)
    options = dict(benchmark_file=FOLDER + "/figures", trace_file=FOLDER + "/trace",
                   logger=FOLDER + "/log", cache=Cache(memory="1MB", disk=FOLDER))
    with loader(**options) as it:
        whole = all_come(it) and all_come(it)
    return whole and sorted(os.listdir(FOLDER)) is not None
"""


def in_little_room(option: str, limits: str, folder: Path) -> dict[int, str]:
    target = folder / "full"
    target.mkdir(exist_ok=True)
    script = f"FOLDER, OPTION = {str(target)!r}, {option!r}\n{ROOM}each({limits}, work)"
    return told(run(script, folder, through=MOUNTS))


def check(found: dict[int, str], why: str) -> None:
    """Each is whole, or tells of `why`."""
    for limit, outcome in found.items():
        assert outcome == "whole" or re.match(rf"\w+Error: .*({why})", outcome), (limit, outcome)


@may_mount
def test_file_system_without_inodes_costs_no_batch(tmp_path: Path) -> None:
    check(in_little_room("nr_inodes={},size=4m", "[2]", tmp_path), "No space left")


@pytest.mark.soak
@pytest.mark.timeout(3600)
@may_mount
@pytest.mark.parametrize(
    ("option", "limits"),
    [
        ("nr_inodes={},size=4m", [*range(1, 16), 24, 64]),
        ("size={}k", [4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 1024, 4096]),
    ],
    ids=["inodes", "bytes"],
)
def test_every_room_of_a_file_system_for_long(
    option: str, limits: list[int], tmp_path: Path
) -> None:
    found = {}
    for i in range(0, len(limits), 4):
        found |= in_little_room(option, str(limits[i : i + 4]), tmp_path)
    print(found)
    check(found, "No space left")
    assert found[max(found)] == "whole"


# ---- memory


MEMORY = """
import tempfile
def work(limit):
    group = tempfile.mkdtemp(prefix="swift_loader", dir=GROUP)
    try:
        if (pid := os.fork()) == 0:
            for name in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"):
                try:
                    open(f"{group}/{name}", "w").write(str(limit << 20))
                except OSError:
                    pass  # where swap is not counted
            open(f"{group}/cgroup.procs", "w").write(str(os.getpid()))
            os.setsid()
            with loader(max_worker_restarts=2) as it:
                print(limit, outcome(lambda: all_come(it)), flush=True)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status == -signal.SIGKILL:
            print(limit, "killed by the kernel", flush=True)
        elif status:
            print(limit, "RAW", status, flush=True)
        for _ in range(200):  # those that are left end by themselves
            if not open(f"{group}/cgroup.procs").read():
                break
            time.sleep(0.05)
        else:
            print(limit, "LEFT", open(f"{group}/cgroup.procs").read().split(), flush=True)
    finally:
        os.rmdir(group)
for limit in LIMITS:
    work(limit)
"""


@pytest.mark.soak
@pytest.mark.timeout(3600)
@may_group
def test_every_limit_of_memory_of_a_group_for_long(tmp_path: Path) -> None:
    """As of a container: the kernel ends what it likes, the training process too."""
    found = {}
    for limits in ([8, 16, 32, 64], [96, 128, 192, 256], [384, 512, 1024, 2048]):
        script = f"GROUP, LIMITS = {str(CGROUP)!r}, {limits}\n{MEMORY}"
        found |= told(run(script, tmp_path))
    print(found)
    for limit, outcome in found.items():
        assert re.match(r"whole|killed by the kernel|\w+Error: ", outcome), (limit, outcome)
    assert found[2048] == "whole"


SERVED = """
def work(limit):
    with loader(worker_per_consumer=0, remote_workers=[ADDRESS], remote_timeout=3) as it:
        return all_come(it) and all_come(it)
each([LIMIT], work)
"""


def serve_within(kilobytes: int, what: str, folder: Path) -> str:
    """What a training tells that has its workers from an endpoint with so little memory."""
    pytest.importorskip("zmq")
    with RunningEndpoint(2, limits=f"ulimit -{what} {kilobytes};") as endpoint:
        if not endpoint.port:
            assert endpoint.process.wait(20) != 0
            return "not started"
        script = SERVED.replace("ADDRESS", repr(endpoint.address)).replace("LIMIT", str(kilobytes))
        (outcome,) = told(run(script, folder)).values()
    return outcome


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("what", ["v", "d"], ids=["addresses", "data"])
def test_endpoint_at_every_limit_of_memory_for_long(what: str, tmp_path: Path) -> None:
    found = {}
    for megabytes in (4, 128, 256, 512, 1024, 2048, 8192):
        found[megabytes] = serve_within(megabytes << 10, what, tmp_path)
        print(megabytes, found[megabytes], flush=True)
    for limit, outcome in found.items():
        assert re.match(r"whole|not started|\w+Error: ", outcome), (limit, outcome)
    assert found[max(found)] == "whole"
