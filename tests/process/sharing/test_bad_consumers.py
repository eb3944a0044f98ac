"""A consumer that says or does what it should not ends alone: the producer and the others go on."""

from __future__ import annotations

import mmap
import os
import resource
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from swift_loader.sharing import TensorProducer
from swift_loader.sharing.messages import Join, Leave, Position, Region, Took
from swift_loader.sharing.port import Port, PortOwner
from swift_loader.transport.channel import Channel
from swift_loader.transport.table import TABLE, pack, unpack
from tests.process.sharing.parties import ask, await_consumers, consume, expected, produce, say

KIND = {row.name: row.kind for row in TABLE}
JOIN = Join("1", "odd", "now")
ODD: dict[str, list[tuple[int, bytes]]] = {
    "two ways to join": [pack(JOIN), pack(JOIN)],
    "a dict": [pack(JOIN), (KIND["Join"], b"\x80\x05}.")],
    "no pickle": [(KIND["Join"], b"junk")],
    "an unknown kind": [(250, b"")],
    "what a producer says": [(KIND["Ended"], pack(Leave())[1])],
    "a position of text": [pack(Join("1", "odd", "now", "", ("a", "b"), strict=True))],  # type: ignore[arg-type]
    "a position below 0": [pack(Join("1", "odd", "now", "", Position(-1, -5), strict=True))],
    "another version": [pack(Join("0", "odd", "now"))],
    "a name that is none": [pack(Join("1", 3, "now"))],  # type: ignore[arg-type]
    "an odd wish": [pack(Join("1", "odd", "never"))],  # type: ignore[arg-type]
    "more than it was sent": [pack(JOIN), pack(Took(4_000_000_000, ()))],
    "leases of nobody": [pack(JOIN), pack(Took(0, (10**9,)))],
    "half a count": [pack(JOIN), (KIND["Took"], b"\x01")],
    "more than a message may be": [pack(JOIN), (KIND["Join"], bytes(2 << 20))],
}


def connected(path: Path) -> Channel:
    while True:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            sock.close()
            time.sleep(0.01)
        else:
            return Channel(sock)


def test_what_one_consumer_says_wrongly_ends_that_one_alone(
    party: Any, port: str, directory: Path
) -> None:
    producer = party(produce, port, 40)
    odd = []
    for frames in ODD.values():
        channel = connected(directory / f"{port}.sock")
        odd.append(channel)
        for kind, payload in frames:
            channel.post(kind, payload)
        channel.flush()
    reader = party(consume, port)
    assert reader.result() == expected(40)
    for channel in odd:
        channel.close()
    assert producer.result() == 40


def test_consumers_can_neither_shrink_nor_write_to_what_others_read(
    party: Any, port: str, directory: Path
) -> None:
    producer = party(produce, port, 40, 1, 2, consumer_max_buffer_size=2)
    channel = connected(directory / f"{port}.sock")
    channel.post(*pack(JOIN))
    channel.flush()
    reader = party(consume, port)
    region: Region | None = None
    while region is None:
        for frame in channel.receive(wait=True):
            message = unpack(*frame)
            region = message if isinstance(message, Region) else region
    fd = channel.take_fd()
    for size in (0, region.nbytes * 2):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    for attempt in (
        lambda: os.pwrite(fd, b"\xff" * 4096, 0),
        lambda: mmap.mmap(fd, region.nbytes),
    ):
        with pytest.raises(PermissionError):
            attempt()
    os.close(fd)
    channel.close()
    assert reader.result() == expected(40)
    producer.result()


def test_a_consumers_name_brings_no_codes_into_a_terminal(port: str, directory: Path) -> None:
    with TensorProducer([1, 2], port) as producer:
        channel = connected(directory / f"{port}.sock")
        channel.post(*pack(Join("1", "\x1b[2Jx\n", "now")))
        channel.flush()
        await_consumers(producer, 1)
        assert producer.consumers()[0].name.startswith("?[2Jx? (process")
        channel.close()


def test_a_producers_files_go_with_it(port: str, directory: Path) -> None:
    with TensorProducer([1, 2], port):
        assert {path.suffix for path in directory.iterdir()} == {".sock", ".lock"}
    assert not list(directory.iterdir())


class Endless:
    """An iterator with a length and no end, as ``itertools.cycle`` with a `len`."""

    def __init__(self) -> None:
        self._next = 0

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> int:
        self._next += 1
        return self._next


def test_an_iterator_without_end_has_epochs_of_its_length(party: Any, port: str) -> None:
    def serve() -> list[list[int]]:
        with TensorProducer(Endless(), port) as producer:
            epochs = [list(producer) for _ in range(2)]
            producer.join()
        return epochs

    def read() -> list[list[int]]:
        from swift_loader.sharing import TensorConsumer

        consumer = TensorConsumer(port)
        return [list(consumer) for _ in range(2)]

    reader = party(read)
    assert party(serve).result() == [[0, 1, 2], [0, 1, 2]]
    assert reader.result() == [[1, 2, 3], [4, 5, 6]]


def test_the_first_epoch_waits_for_as_many_as_were_asked_for(party: Any, port: str) -> None:
    def serve() -> int:
        producer = TensorProducer(range(300), port, wait_for=3, rubber_band_pct=0.0)
        made = sum(1 for _ in producer)
        producer.join()
        return made

    def read(pause_s: float) -> int:
        from swift_loader.sharing import TensorConsumer

        time.sleep(pause_s)
        return sum(1 for _ in TensorConsumer(port))

    producer = party(serve)
    readers = [party(read, pause_s) for pause_s in (0.0, 0.3, 0.8)]
    assert [reader.result() for reader in readers] == [300, 300, 300]
    assert producer.result() == 300


def test_locks_of_producers_that_were_killed_are_removed(
    party: Any, port: str, directory: Path
) -> None:
    killed = party(produce, "killed", 5)
    while not (directory / "killed.sock").exists():
        time.sleep(0.01)
    killed.kill()
    with TensorProducer([1], "other"):
        assert {path.name for path in directory.iterdir()} == {"other.sock", "other.lock"}


@pytest.mark.parametrize("how", ["missing", "read-only"])
def test_folder_that_can_not_be_written_to_has_another_in_its_place(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/proc" if how == "read-only" else "/of/nobody")
    with tempfile.TemporaryDirectory(prefix="s", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        with pytest.warns(RuntimeWarning, match="XDG_RUNTIME_DIR"):
            port = Port("7")
        assert port.directory == Path(folder) / f"swift_loader-{os.geteuid()}"
        PortOwner(port).close()


def test_consumer_that_there_is_no_descriptor_for_is_hung_up_on(party: Any, port: str) -> None:
    def serve() -> str:
        owner = PortOwner(Port(port))
        say("up")
        ask()
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        fillers = []
        with suppress(OSError):
            while True:
                fillers.append(os.dup(0))
        got = [owner.accept() for _ in range(3)]
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for fd in fillers:
            os.close(fd)
        while owner.accept() is None:
            say("full")
            ask()
        owner.close()
        return repr(got)

    producer = party(serve)
    producer.hear()
    with socket.socket(socket.AF_UNIX) as refused, socket.socket(socket.AF_UNIX) as later:
        refused.connect(Port(port).path)
        producer.tell()
        assert producer.hear() == "full"
        assert refused.recv(1) == b""
        later.connect(Port(port).path)
        producer.tell()
        assert producer.result() == "[None, None, None]"
