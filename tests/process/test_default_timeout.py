"""`socket.setdefaulttimeout`, early or late: it reaches the data set, and breaks no loader."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.process.scripts import printed_by

pytestmark = pytest.mark.usefixtures("nothing_left")

# Workers, the loop and the producer are each silent for longer than the timeout.
SCRIPT = """
import json, secrets, socket, sys, threading, time
from torch.utils.data import DataLoader
from swift_loader import SwiftLoader
from swift_loader.cache import Cache
from swift_loader.sharing import TensorConsumer, TensorProducer

method, when = sys.argv[1:]


class Slow:
    def __len__(self):
        return 4

    def __getitem__(self, i):
        time.sleep(0.15)
        return i, socket.getdefaulttimeout() or -1.0


def batches(loader):
    found = []
    for numbers, timeouts in loader:
        time.sleep(0.15)
        found.append([numbers.tolist(), timeouts.tolist()])
    return found


def shared():
    port, found = secrets.token_hex(6), []
    consumer = threading.Thread(target=lambda: found.extend(map(int, TensorConsumer(port))))
    consumer.start()
    with TensorProducer(DataLoader([0, 1, 2]), port, wait_for=1) as producer:
        for _ in producer:
            time.sleep(0.15)
        producer.join()
    consumer.join()
    return found


if when == "top":
    socket.setdefaulttimeout(0.05)
if __name__ == "__main__":
    def loader(**more):
        options = {"batch_size": 2, "num_workers": 2, "timeout": 60, "start_method": method}
        return SwiftLoader(Slow(), **options, **more)

    if when == "between":
        with loader() as first:
            list(first)
    socket.setdefaulttimeout(0.05)
    results = {}
    with loader() as each:
        results["plain"] = batches(each)
    with loader(cache=Cache("1MB")) as each:
        results["cache"] = batches(each)
    results["torch"] = batches(DataLoader(Slow(), 2, num_workers=2, multiprocessing_context="fork"))
    print(json.dumps([results, shared()]))
"""


@pytest.mark.timeout(170)
@pytest.mark.parametrize(
    ("method", "when"),
    [
        ("fresh", "between"),
        pytest.param("main", "top", marks=pytest.mark.soak),
        pytest.param("fork", "between", marks=pytest.mark.soak),
        pytest.param("main", "between", marks=pytest.mark.soak),
    ],
)
def test_a_default_timeout_of_sockets_breaks_no_loader(
    method: str, when: str, tmp_path: Path
) -> None:
    printed, _ = printed_by(SCRIPT, tmp_path, method, when)
    results, consumed = json.loads(printed)
    assert results["plain"] == results["torch"] == results["cache"]
    assert consumed == [0, 1, 2]
