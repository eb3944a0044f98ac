"""Memory: one copy of what all workers read, and nothing that grows."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from swift_loader import SharedList, SwiftLoader
from tests import datasets
from tests.conformance import indices_of
from tests.process.scripts import running
from tests.process.test_crashes import workers_of

pytestmark = pytest.mark.usefixtures("nothing_left")

MIB = 1 << 20
COPIES = 1.3


def pss_bytes(pids: list[int]) -> int:
    """Memory of these processes together; what several of them share counts once."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def pss_of_all(loader: SwiftLoader) -> int:
    gc.collect()
    return pss_bytes([os.getpid(), *(worker.pid for worker in workers_of(loader))])


def read_all(loader: SwiftLoader) -> None:
    for _ in loader:
        pass


def read_until_all_work(loader: SwiftLoader, workers: int) -> None:
    """Epochs until every worker has come up and made something: before, memory may still grow."""
    read_all(loader)
    while sum(worker.batches > 0 for worker in loader.stats().workers) < workers:
        read_all(loader)


def added_by(dataset: type, small: Callable[[], Any], large: Callable[[], Any]) -> int:
    """Bytes that four workers that have read all need more for a `large` argument than a `small`.

    This process keeps no reference beside the loader's.
    """
    used = []
    for argument in (small, large):
        with SwiftLoader(
            dataset, {"it": argument()}, batch_size=64, worker_per_consumer=4, validate=False
        ) as loader:
            read_until_all_work(loader, 4)
            read_all(loader)
            used.append(pss_of_all(loader))
    return used[1] - used[0]


def rows(count: int) -> SharedList[dict[str, Any]]:
    return SharedList({"path": f"images/{i:09}.jpg", "label": i % 1000} for i in range(count))


@pytest.mark.parametrize(
    "count",
    [
        100_000,
        pytest.param(1_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)
def test_many_small_dicts_are_one_copy_for_all_workers(count: int) -> None:
    # The figure of a plain list of dicts in every process would be five copies of more.
    one_copy = rows(count).nbytes
    added = added_by(datasets.Rows, lambda: rows(64 * 20), lambda: rows(count))
    assert one_copy // 2 < added <= COPIES * one_copy + 8 * MIB, (added / MIB, one_copy / MIB)


def test_a_list_that_only_the_loader_has_serves_replaced_workers_too() -> None:
    with SwiftLoader(
        datasets.Rows, {"it": rows(4000)}, batch_size=4, worker_per_consumer=2
    ) as loader:
        labels = []
        for batch in loader:
            labels += batch["label"].tolist()
            if len(labels) == 400:
                for worker in workers_of(loader):
                    worker.kill()
    assert labels == [i % 1000 for i in range(4000)]


def test_arrays_in_the_arguments_are_one_copy_for_all_workers() -> None:
    nbytes = 160 * MIB
    added = added_by(
        datasets.OverArray,
        lambda: np.ones((64 * 20, 16), np.float32),
        lambda: np.ones((nbytes // (4 << 14), 1 << 14), np.float32),
    )
    assert nbytes // 2 < added <= COPIES * nbytes


def test_a_worker_may_write_to_its_arrays_and_nobody_else_sees_it() -> None:
    array = np.zeros(64, np.int64)
    with SwiftLoader(
        datasets.WritesArray, {"it": array}, batch_size=8, worker_per_consumer=2
    ) as loader:
        seen: Counter[tuple[int, int]] = Counter()
        while len({pid for pid, _ in seen}) < 2:
            for batch in loader:
                places = list(zip(batch["pid"].tolist(), batch["index"].tolist(), strict=True))
                seen.update(places)
                counts = [seen[place] for place in places]
                assert batch["seen"].tolist() == counts
    assert not array.any()


def test_arguments_are_serialized_once_for_all_workers_and_their_successors() -> None:
    counted = datasets.CountsPickling(np.zeros(MIB))
    with SwiftLoader(
        datasets.Numbers, {"n": 800, "width": 4}, batch_size=2, worker_per_consumer=2
    ) as plain:
        read_all(plain)
    with SwiftLoader(
        datasets.OfObject, {"n": 800, "it": counted}, batch_size=2, worker_per_consumer=4
    ) as loader:
        iterator = iter(loader)
        next(iterator)
        for worker in workers_of(loader):
            worker.kill()
        for _ in iterator:
            pass
    assert datasets.CountsPickling.times == 1


def test_every_batch_of_an_epoch_may_be_kept() -> None:
    with SwiftLoader(
        datasets.Numbers,
        {"n": 8000, "width": 64},
        batch_size=4,
        worker_per_consumer=2,
        data_queue_size=10,  # as below: by default it may be longer than was ever under way before
    ) as loader:
        read_until_all_work(loader, 2)
        before = used_by_this_process(loader)
        kept = list(loader)
        after = used_by_this_process(loader)
        assert [i for batch in kept for i in indices_of(batch)] == list(range(8000))
        assert after["descriptors"] <= before["descriptors"] + 40
        assert after["regions"] <= before["regions"] + 40
        assert after["mapped"] <= 8 * MIB
        del kept


def used_by_this_process(loader: SwiftLoader) -> dict[str, int]:
    """What must not grow."""
    gc.collect()
    lines = Path("/proc/self/maps").read_text().splitlines()
    slots = [line.split()[0].split("-") for line in lines if "swift_loader:batch" in line]
    me = psutil.Process()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "regions": len(slots),
        "mapped": sum(int(end, 16) - int(start, 16) for start, end in slots),
        "memory": me.memory_full_info().uss,
        "workers' memory": sum(w.memory_full_info().uss for w in workers_of(loader)),
        "workers' descriptors": sum(w.num_fds() for w in workers_of(loader)),
        "workers' threads": sum(w.num_threads() for w in workers_of(loader)),
    }


@pytest.mark.parametrize("staged", [False, True])
def test_nothing_grows_over_many_epochs(staged: bool) -> None:
    with SwiftLoader(
        datasets.Drawn,
        {"n": 60},
        batch_size=3,
        worker_per_consumer=2,
        data_queue_size=10,  # what is under way at most: it may take long until as much ever was
        shuffle=True,
    ) as loader:
        loader.start(0, to_device=(lambda batch, device: batch) if staged else None)
        read_until_all_work(loader, 2)
        for _ in range(20):
            read_all(loader)
        before = used_by_this_process(loader)
        for _ in range(60):
            read_all(loader)
        after = used_by_this_process(loader)
    for what in ("memory", "workers' memory"):
        assert after.pop(what) <= before.pop(what) + 6 * MIB, what
    assert after.pop("mapped") <= before.pop("mapped") + MIB
    for what, count in after.items():  # slots come as they are needed, and are not many
        assert count <= before[what] + 20, (what, before, after)


WITHOUT_SHM = """
import ctypes, subprocess
assert ctypes.CDLL(None, use_errno=True).unshare(0x00020000) == 0, "not permitted"
made = subprocess.run(["sh", "-c", "mount --make-rprivate / && MOUNT"], cwd=FOLDER)
assert made.returncode == 0, "not permitted"
"""
BIG_BATCHES = """
class Big(Dataset):
    def __getitem__(self, i):
        return torch.full((4_000_000,), i % 251, dtype=torch.uint8), i
with SwiftLoader(Big, {"n": 12}, batch_size=2, worker_per_consumer=2) as loader:
    for rows, indices in loader:
        assert (rows == indices[:, None] % 251).all()
print("read")
"""


@pytest.mark.parametrize(
    "mount",
    [
        pytest.param("mount -t tmpfs -o size=1m none /dev/shm", id="1 MB"),
        pytest.param("mount -t tmpfs -o ro none /dev/shm", id="read-only"),
        pytest.param(
            "mkdir dev && mount -t tmpfs none dev && for d in null zero urandom; do touch dev/$d "
            "&& mount --bind /dev/$d dev/$d || exit 1; done && mount --rbind dev /dev",
            id="none",
        ),
    ],
)
def test_dev_shm_does_not_matter(mount: str, tmp_path: Path) -> None:
    script = WITHOUT_SHM.replace("MOUNT", mount).replace("FOLDER", repr(str(tmp_path)))
    with running(script + BIG_BATCHES, tmp_path) as process:
        out, err = process.communicate(timeout=60)
    if "not permitted" in err:
        pytest.skip("mounting in a namespace of its own is not permitted here")
    assert out.strip() == "read", err


def test_a_batch_larger_than_all_before_it_arrives_whole() -> None:
    sizes = [1, 10, 100, 1000, 10, 64 * MIB, 5, 0, 96 * MIB, 1]
    with SwiftLoader(
        datasets.OfSize, {"sizes": sizes}, worker_per_consumer=2, validate=False
    ) as loader:
        for _ in range(2):
            for size, (rows_, index) in zip(sizes, loader, strict=True):
                assert rows_.shape == (1, size)
                assert (rows_ == int(index) + 1).all()


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("gib", [2, 4])
def test_a_batch_of_gibibytes_arrives_whole(gib: int) -> None:
    if psutil.virtual_memory().available < 3 * gib * 1024 * MIB:
        pytest.skip("too little memory")
    nbytes = gib * 1024 * MIB + 12345
    with SwiftLoader(
        datasets.OfSize, {"sizes": [nbytes]}, validate=False, data_queue_size=1
    ) as loader:
        ((batch, _),) = loader
        assert batch.shape == (1, nbytes)
        assert bool((batch[0, :: 1 << 20] == 1).all())
        assert int(batch[0, -1]) == 1
