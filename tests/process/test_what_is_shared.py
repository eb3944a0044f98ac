"""What a data set shares with the training process, and errors of every kind, through workers."""

from __future__ import annotations

import asyncio
import email.message
import io
import multiprocessing
import sys
import urllib.error
from multiprocessing import shared_memory
from typing import Any

import pytest
import torch

from swift_loader import SwiftLoader
from swift_loader.errors import ShippingError, WorkerError
from tests.process.test_crashes import workers_of

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(120)]
SPAWN = multiprocessing.get_context("spawn")
EPOCHS = 2


@pytest.fixture(scope="module", autouse=True)
def _multiprocessing_is_up() -> None:
    """Its heap and its tracker stay open as long as the process lives."""
    SPAWN.Value("i", 0)


class Counting:
    """Counts its samples in all kinds of shared memory."""

    def __init__(self, seen: torch.Tensor, value: Any, block: Any, scale: torch.Tensor) -> None:
        self.seen, self.value, self.block, self.scale = seen, value, block, scale

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        self.seen[index] += 1
        with self.value:
            self.value.value += 1
        self.block.buf[index] = 1
        return self.scale * index


def test_memory_shared_with_workers_is_one() -> None:
    seen = torch.zeros(16, dtype=torch.int64).share_memory_()
    scale = torch.ones(()).share_memory_()
    value = SPAWN.Value("i", 0)
    block = shared_memory.SharedMemory(create=True, size=16)
    shared = {"seen": seen, "value": value, "block": block, "scale": scale}
    try:
        with SwiftLoader(Counting, shared, batch_size=4, worker_per_consumer=2) as loader:
            loader.start(0)
            before = int(seen.sum())  # of the batch that was tried
            scale.fill_(3.0)
            for _ in range(EPOCHS):
                samples = torch.cat(list(loader)).tolist()
        assert samples[-1] == 45.0
        assert int(seen.sum()) == value.value
        assert int(seen.sum()) >= before + EPOCHS * 16
        assert bytes(block.buf[:16]) == b"\1" * 16
        shared_memory.SharedMemory(block.name).close()  # no worker has removed it
    finally:
        block.close()
        block.unlink()


def test_what_workers_elsewhere_cannot_share_is_refused_at_once() -> None:
    with pytest.raises(ShippingError, match=r"dataset_kwargs\['seen'\].*other machines.*clone"):
        SwiftLoader(
            Counting,
            {"seen": torch.zeros(3).share_memory_(), "value": 0, "block": 0, "scale": 0},
            batch_size=4,
            worker_per_consumer=0,
            remote_workers=["tcp://127.0.0.1:1"],
        )


class Raising:
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index == 0:
            message = email.message.Message()
            response: Any = io.BufferedReader(io.BytesIO())  # type: ignore[arg-type]
            raise urllib.error.HTTPError("http://x", 404, "Not Found", message, response)
        if index == 1:
            sys.exit("by mistake")
        if index == 2:
            raise asyncio.CancelledError
        if index == 3:
            raise GeneratorExit
        if index == 4:
            raise ValueError("x" * 30_000_000)
        return index


def test_errors_of_every_kind_name_their_sample_and_end_no_worker() -> None:
    errors: list[Any] = []
    with SwiftLoader(
        Raising, {}, batch_size=1, worker_per_consumer=1, shuffle=False, validate=False
    ) as loader:
        loader.start(0)
        batches = iter(loader)
        for _ in range(5):
            try:
                next(batches)
            except Exception as error:  # noqa: BLE001
                errors.append(error)
        assert next(batches).tolist() == [5]
        assert loader.stats().restarts == 0
    assert errors[0].code == 404
    assert "sample 0" in str(errors[0].__cause__)
    for sample, kind in ((1, SystemExit), (2, asyncio.CancelledError), (3, GeneratorExit)):
        assert type(errors[sample]) is WorkerError
        assert type(errors[sample].__cause__) is kind
        assert f"sample {sample}" in str(errors[sample])
    assert "30,000,000 characters in all" in errors[4].args[0]


def test_on_error_leaves_out_what_a_library_cancelled() -> None:
    def on_error(error: BaseException, index: int) -> Any:
        return -index if not isinstance(error, urllib.error.HTTPError) else error.code

    with SwiftLoader(
        Raising,
        {},
        batch_size=6,
        shuffle=False,
        validate=False,
        on_error=on_error,
        sampler=[0, 2, 3, 4, 5],
    ) as loader:
        loader.start(0)
        assert next(iter(loader)).tolist() == [404, -2, -3, -4, 5]


class OneText:
    def __init__(self, text: bytes) -> None:
        self.text = text

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return self.text[index]


def test_large_bytes_are_one_copy_for_all_workers() -> None:
    text = bytes(range(256)) * (1 << 18)
    with SwiftLoader(OneText, {"text": text}, batch_size=1, worker_per_consumer=2) as loader:
        loader.start(0)
        assert [int(batch) for batch in loader] == [0, 1, 2, 3]
        own = [worker.memory_full_info().uss for worker in workers_of(loader)]
    assert sum(own) < len(text), "no worker has a copy of its own"
