"""Batches that several processes read on one device: once there, private, in order, bounded."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest

from tests.gpu.parties import (
    DEVICE,
    Spawn,
    SpawnedParty,
    keep,
    produce_samples,
    read,
    read_some_and_wait,
    samples,
    used_bytes,
)
from tests.process.sharing.parties import expected, produce, starting

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("device")]


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="share-") as directory:  # a socket's path is short
        monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
        yield "5556"


@pytest.fixture
def party(port: str) -> Iterator[Spawn]:
    with starting(SpawnedParty) as start:
        yield start


def test_every_consumer_reads_every_batch_behind_a_busy_device(party: Spawn, port: str) -> None:
    producer = party(produce, port, 200, epochs=2, wait_for=3, device=DEVICE)
    consumers = [party(read, port, 2) for _ in range(2)]
    consumers.append(party(read, port, 2, copy_on_device=False))
    assert [c.result() for c in consumers] == [expected(200, 2)] * 3
    assert producer.result() == 400


def test_what_a_consumer_writes_reaches_nobody(party: Spawn, port: str) -> None:
    producer = party(produce, port, 100, wait_for=3, device=DEVICE)
    consumers = [
        party(read, port, scribble=True),
        party(read, port),
        party(read, port, copy_on_device=False),
    ]
    assert [c.result() for c in consumers] == [expected(100)] * 3
    producer.result()


@pytest.mark.parametrize("copy_on_device", [True, False])
def test_batches_that_are_kept_stay_as_they_were(
    party: Spawn, port: str, copy_on_device: bool
) -> None:
    producer = party(produce, port, 80, wait_for=2, device=DEVICE)
    keeper = party(keep, port, 30, max_kept=5, copy_on_device=copy_on_device)
    other = party(read, port)
    assert keeper.result() == expected(80)[:30]
    assert other.result() == expected(80)
    producer.result()


@pytest.mark.parametrize("copy_on_device", [True, False])
def test_killed_consumer_disturbs_nobody(party: Spawn, port: str, copy_on_device: bool) -> None:
    producer = party(produce, port, 200, wait_for=2, device=DEVICE, consumer_max_buffer_size=4)
    doomed = party(read_some_and_wait, port, copy_on_device=copy_on_device)
    assert doomed.hear() == 0
    other = party(read, port)
    doomed.kill()
    assert other.result() == expected(200)
    assert producer.result() == 200


def test_batches_of_ones_own_size_cut_the_stream_of_a_swift_loader(party: Spawn, port: str) -> None:
    producer = party(produce_samples, port, 100, 2)
    smaller, larger = party(samples, port, 4), party(samples, port, 10)
    for consumer, size in ((smaller, 4), (larger, 10)):
        want = [list(range(i, min(i + size, 100))) for i in range(0, 100, size)]
        assert consumer.result() == want
    assert producer.result() == 17


def test_memory_of_the_device_stays_flat(party: Spawn, port: str) -> None:
    # Contexts of several processes take turns on a device, milliseconds each: few batches.
    producer = party(produce, port, 400, wait_for=2, device=DEVICE, shape=(64, 10_000))
    watcher, other = party(used_bytes, port, (100, 390)), party(read, port)
    early, late = watcher.result()
    assert late <= early + (64 << 20)
    assert other.result() == expected(400)
    producer.result()
