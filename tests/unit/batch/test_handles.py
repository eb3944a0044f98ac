"""What processes share is shared with workers too, and not copied."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import queue
import subprocess
import sys
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import pytest
import torch

from swift_loader.batch.handles import Shipment, shipping
from swift_loader.batch.shipping import pack, unpack
from swift_loader.errors import ShippingError

SPAWN = multiprocessing.get_context("spawn")
TIMEOUT_S = 60.0

#: plays a worker: changes what it was given, and says what it saw
WORKER = """
import sys
from swift_loader.batch.shipping import unpack
parts = unpack(memoryview(bytearray(open(sys.argv[1], "rb").read())))
exec(parts.pop("code"), parts)
"""


def in_a_worker(folder: Path, code: str, **parts: Any) -> str:
    payload = pack({"code": code, **parts})
    (folder / "payload").write_bytes(bytes(payload))
    ran = subprocess.run(
        [sys.executable, "-c", WORKER, str(folder / "payload")],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "resource_tracker" not in ran.stderr, ran.stderr
    return ran.stdout.strip()


def test_shared_memory_of_all_kinds_is_shared_both_ways(tmp_path: Path) -> None:
    whole = torch.zeros(10).share_memory_()
    (tmp_path / "file").write_bytes(bytes(16))
    mapped = torch.from_file(str(tmp_path / "file"), shared=True, size=4)
    weights = torch.nn.Linear(2, 2).share_memory()
    raw = multiprocessing.RawArray("d", 4)
    value = SPAWN.Value("i", 5)
    array = SPAWN.Array("q", [1, 2, 3])
    lock, event, sent = SPAWN.Lock(), SPAWN.Event(), SPAWN.Queue()
    reader, writer = SPAWN.Pipe(duplex=False)
    block = shared_memory.SharedMemory(create=True, size=100)
    with multiprocessing.Manager() as manager:
        table = manager.dict(a=1)
        said = in_a_worker(
            tmp_path,
            """
assert tail.storage_offset() == 2 and weights.weight.requires_grad
whole[0] = 7; tail[0] = 8; mapped[1] = 9
weights.weight.data.fill_(3)
raw[2] = 2.5
with value: value.value += 1
array[1] = 20
assert not lock.acquire(timeout=0.01)
event.set()
sent.put("from the worker"); sent.close(); sent.join_thread()
writer.send([1, 2])
block.buf[0] = 42
table["b"] = 2
print("seen", whole[3].item())
""",
            whole=whole, tail=whole[2:], mapped=mapped, weights=weights, raw=raw, value=value,
            array=array, lock=_held(lock), event=event, sent=sent, writer=writer, block=block,
            table=table,
        )  # fmt: skip
        assert table["b"] == 2
    assert said == "seen 0.0"
    assert whole[:3].tolist() == [7, 0, 8]
    assert mapped.tolist() == [0, 9, 0, 0]
    assert bool((weights.weight == 3).all())
    assert raw[2] == 2.5
    assert value.value == 6
    assert array[:] == [1, 20, 3]
    assert event.is_set()
    assert sent.get(timeout=TIMEOUT_S) == "from the worker"
    with pytest.raises(queue.Empty):
        sent.get_nowait()
    assert reader.recv() == [1, 2]
    again = shared_memory.SharedMemory(block.name)  # the worker's end has not removed it
    assert again.buf[0] == 42
    again.close()
    block.close()
    block.unlink()


def _held(lock: Any) -> Any:
    lock.acquire()
    return lock


def test_a_block_that_a_dataset_opens_by_name_outlives_the_worker(tmp_path: Path) -> None:
    block = shared_memory.SharedMemory(create=True, size=100)
    code = "from multiprocessing import shared_memory as s; b = s.SharedMemory(name); b.close()"
    in_a_worker(tmp_path, code, name=block.name)
    shared_memory.SharedMemory(block.name).close()
    block.close()
    block.unlink()


def test_memory_is_kept_while_the_payload_is() -> None:
    tensor = torch.zeros(100_000).share_memory_()
    payload = pack({"t": tensor})
    assert payload.nbytes < 4096
    data = bytes(payload)
    tensor[0] = 1
    del tensor
    gc.collect()
    assert unpack(memoryview(bytearray(data)))["t"][0] == 1


def test_the_strategy_by_names_works_too() -> None:
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    try:
        tensor = torch.zeros(100).share_memory_()
        payload = pack({"t": tensor})
        for _ in range(3):  # as many workers
            unpack(memoryview(bytearray(bytes(payload))))["t"][0] += 1
        assert tensor[0] == 3
    finally:
        torch.multiprocessing.set_sharing_strategy(before)


FORK = multiprocessing.get_context("fork")
REFUSED: dict[str, tuple[Any, bool, str]] = {
    "fork's lock": (FORK.Lock, False, r"kwargs\['it'\].*get_context\('spawn'\)"),
    "fork's value": (lambda: FORK.Value("i"), False, r"kwargs\['it'\].*get_context\('spawn'\)"),
    "two-way pipe": (lambda: SPAWN.Pipe()[0], False, r"Pipe\(duplex=False\)"),
    "tensor": (lambda: torch.ones(2).share_memory_(), True, r"\['it'\].*other machines.*clone"),
    "value": (lambda: SPAWN.Value("i"), True, r"Synchronized belongs to one machine"),
    "block": (lambda: SPAWN.RawArray("i", 3), True, "belongs to one machine"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_shared_is_named_with_the_way(name: str) -> None:
    make, elsewhere, words = REFUSED[name]
    with pytest.raises(ShippingError, match=words):
        pack({"kwargs": {"it": make()}}, elsewhere=elsewhere)


def test_pickling_is_as_before_afterwards() -> None:
    pack({"v": SPAWN.Value("i")})
    with pytest.raises(RuntimeError, match="inheritance"):
        pickle.dumps(SPAWN.Value("i"))
    with shipping(Shipment(elsewhere=False)):
        pass
