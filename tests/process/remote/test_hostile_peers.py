"""Peers that have no key, another one, or the key and no manners: an endpoint goes on serving."""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count, islice
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

from swift_loader import ConfigError, SwiftLoader
from swift_loader.batch.shipping import pack as pack_payload
from swift_loader.order.part import Number
from swift_loader.pipeline.elsewhere import Brief
from swift_loader.pipeline.link import Event, Gone, Up
from swift_loader.plan import Plan
from swift_loader.remote import frames, messages
from swift_loader.remote.address import Address
from swift_loader.remote.client import EndpointLink, sha256_of
from swift_loader.remote.frames import SHORT_BYTES
from swift_loader.remote.keys import Keys, load_keys
from swift_loader.remote.status import ask_status
from swift_loader.remote.versions import here
from swift_loader.transport.messages import Forget, SetPlan
from swift_loader.worker.place import Place
from tests import datasets
from tests.conformance import indices_of
from tests.process.remote.endpoints import RunningEndpoint

NB_FRAMES = 10_000
GROWTH_BYTES = 64 << 20


@contextmanager
def dealer(
    endpoint: RunningEndpoint, keys: Keys | None, **options: int
) -> Iterator[zmq.Socket[Any]]:
    """A socket of a peer that knows the protocol."""
    context: zmq.Context[Any] = zmq.Context()
    peer = context.socket(zmq.DEALER)
    peer.linger = 0
    for name, value in options.items():
        peer.setsockopt(getattr(zmq, name), value)
    if keys is not None:
        keys.secure_client(peer)
    peer.connect(endpoint.address)
    try:
        yield peer
    finally:
        context.destroy(linger=0)


def still_serves(endpoint: RunningEndpoint) -> None:
    with SwiftLoader(
        datasets.Numbers,
        {"n": 40},
        batch_size=4,
        worker_per_consumer=0,
        remote_workers=[endpoint.address],
        remote_key=endpoint.key,
    ) as loader:
        assert [i for batch in loader for i in indices_of(batch)] == list(range(40))


@contextmanager
def no_growth(endpoint: RunningEndpoint) -> Iterator[None]:
    still_serves(endpoint)
    process = psutil.Process(endpoint.pid)
    before, fds = process.memory_info().rss, process.num_fds()
    yield
    still_serves(endpoint)
    assert process.memory_info().rss - before < GROWTH_BYTES
    deadline_s = time.monotonic() + 20
    while process.num_fds() > fds + 8 and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert process.num_fds() <= fds + 8


def hello(fd: int, **changes: Any) -> messages.Hello:
    place: dict[str, Any] = {
        "protocol": messages.PROTOCOL,
        "versions": here(),
        "payload_bytes": os.fstat(fd).st_size,
        "payload_sha256": sha256_of(fd),
        "consumer_index": 0,
        "nb_consumer": 1,
        "worker_per_consumer": 0,
        "seed": 0,
        "first_worker": 0,
        "worker_step": 1,
    }
    return messages.Hello(**{**place, **changes})


@pytest.fixture
def payload_fd() -> Iterator[int]:
    packed = pack_payload(
        {
            "dataset_class": datasets.Big,
            "dataset_kwargs": {"n": 1000, "nbytes": 1 << 20},
            "collate_fn": None,
            "batch_encoder": None,
            "worker_init_fn": None,
            "on_error": "raise",
            "threads_per_worker": 1,
        }
    )
    fd = os.memfd_create("payload")
    os.ftruncate(fd, packed.nbytes)
    region = bytearray(packed.nbytes)
    packed.write(memoryview(region))
    os.pwrite(fd, region, 0)
    yield fd
    os.close(fd)


def answer(peer: zmq.Socket[Any], kind: type) -> Any:
    """The next message of this kind."""
    while peer.poll(20_000):
        for message in frames.unpack_frames(peer.recv_multipart()):
            if isinstance(message, kind):
                return message
    raise AssertionError(f"no {kind.__name__} came")


def session(peer: zmq.Socket[Any], fd: int) -> messages.Welcome:
    """Go through the beginning of a session."""
    peer.send_multipart(frames.pack_frames(hello(fd)))
    welcome: messages.Welcome = answer(peer, messages.Welcome)
    if welcome.need_payload:
        whole = os.pread(fd, os.fstat(fd).st_size, 0)
        peer.send_multipart(frames.pack_frames(messages.Chunk(0, whole)))
    answer(peer, Up)
    peer.send_multipart(frames.pack_frames(SetPlan(0, Plan(1000, 1, 1, False, 0, 0))))
    return welcome


def test_ten_thousand_messages_without_the_key_change_nothing(endpoint: RunningEndpoint) -> None:
    generator = random.Random(1)
    with no_growth(endpoint):
        for round_ in range(20):
            with socket.create_connection(("127.0.0.1", endpoint.port)) as raw:
                greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL".ljust(55, b"\0")
                try:
                    if round_ % 2:
                        raw.sendall(greeting)
                    for _ in range(NB_FRAMES // 20):
                        raw.sendall(generator.randbytes(generator.randrange(200)))
                except OSError:
                    continue  # it hung up, as it should
        with dealer(endpoint, None) as peer:
            for _ in range(100):
                peer.send_multipart(frames.pack_frames(messages.AskStatus()))
            assert not peer.poll(500)


def test_ten_thousand_messages_with_the_key_and_no_sense_change_nothing(
    endpoint: RunningEndpoint, key_file: Path
) -> None:
    generator = random.Random(2)
    valid = [
        frames.pack_frames(message)
        for message in (
            messages.Hello(1, here(), 1 << 20, "0" * 64, 0, 1, 1, 0, 0, 1),
            messages.Chunk(0, b"123"),
            SetPlan(0, Plan(100, 4, 1, True, 20, 0)),
            messages.MakeFrame(1, Number(0, 0, 0)),
            Forget(frozenset({1, 2})),
            messages.AskStacks(),
            messages.Bye(),
            messages.AskStatus(),
        )
    ]
    with no_growth(endpoint):
        for _ in range(10):
            with dealer(endpoint, load_keys(key_file)) as peer:
                for _ in range(NB_FRAMES // 10):
                    first, *rest = generator.choice(valid)
                    changed = bytearray(first)
                    for _ in range(generator.randrange(4)):
                        changed[generator.randrange(len(changed))] = generator.randrange(256)
                    if generator.random() < 0.2:
                        changed = bytearray(generator.randbytes(generator.randrange(300)))
                    peer.send_multipart([bytes(changed), *rest])
                    while peer.poll(0):
                        peer.recv_multipart()
    assert ask_status(endpoint.address, load_keys(key_file), 20.0)["sessions"] == []


def test_oversized_frame_cuts_its_sender_off(endpoint: RunningEndpoint, key_file: Path) -> None:
    with no_growth(endpoint), dealer(endpoint, load_keys(key_file)) as peer:
        peer.send(bytes(messages.LONGEST_FRAME_BYTES + 1))
        peer.send_multipart(frames.pack_frames(messages.AskStatus()))
        peer.poll(1000)


def test_dataset_that_does_not_fit_or_is_not_what_was_announced_is_refused(
    endpoint: RunningEndpoint, key_file: Path, payload_fd: int
) -> None:
    with dealer(endpoint, load_keys(key_file)) as peer:
        peer.send_multipart(frames.pack_frames(hello(payload_fd, payload_bytes=2**62)))
        assert "does not fit" in answer(peer, messages.Closing).why
    with dealer(endpoint, load_keys(key_file)) as peer:
        peer.send_multipart(frames.pack_frames(hello(payload_fd, payload_sha256="0" * 64)))
        assert answer(peer, messages.Welcome).need_payload
        size = os.fstat(payload_fd).st_size
        peer.send_multipart(frames.pack_frames(messages.Chunk(0, os.pread(payload_fd, size, 0))))
        assert "announced" in answer(peer, messages.Closing).why


def test_versions_that_do_not_work_together_are_refused(
    endpoint: RunningEndpoint, key_file: Path, payload_fd: int
) -> None:
    with dealer(endpoint, load_keys(key_file)) as peer:
        old = {**here(), "python": "3.8.1"}
        peer.send_multipart(frames.pack_frames(hello(payload_fd, versions=old)))
        assert "3.8.1" in answer(peer, messages.Closing).why
    with dealer(endpoint, load_keys(key_file)) as peer:
        peer.send_multipart(frames.pack_frames(hello(payload_fd, protocol=99)))
        assert "99" in answer(peer, messages.Closing).why


def test_half_open_connections_keep_nobody_out(endpoint: RunningEndpoint) -> None:
    with no_growth(endpoint):
        half = [socket.create_connection(("127.0.0.1", endpoint.port)) for _ in range(100)]
        still_serves(endpoint)
        for raw in half:
            raw.close()


def test_peer_that_orders_and_does_not_read_makes_nothing_grow(
    endpoint: RunningEndpoint, key_file: Path, payload_fd: int
) -> None:
    with dealer(endpoint, load_keys(key_file), RCVHWM=1, RCVBUF=1 << 16) as peer:
        session(peer, payload_fd)
        for k in range(600):
            peer.send_multipart(frames.pack_frames(messages.MakeFrame(k, Number(0, 0, k))))
        made = []
        for _ in range(3):
            time.sleep(1.0)  # what it would do meanwhile is what this is about
            (session_,) = ask_status(endpoint.address, load_keys(key_file), 20.0)["sessions"]
            made.append(session_["batches"])
        assert made[-1] < 300
        still_serves(endpoint)


def test_order_out_of_range_ends_its_own_session_at_most(
    endpoint: RunningEndpoint, key_file: Path, payload_fd: int
) -> None:
    with dealer(endpoint, load_keys(key_file)) as peer:
        session(peer, payload_fd)
        peer.send_multipart(frames.pack_frames(messages.MakeFrame(1, Number(0, 0, 10**9))))
        peer.send_multipart(frames.pack_frames(messages.MakeFrame(2, Number(0, 0, 1), b"\xff" * 8)))
        peer.send_multipart(frames.pack_frames(messages.MakeFrame(3, Number(5, 0, 1))))
        answer(peer, messages.Closing)
    still_serves(endpoint)


@pytest.mark.parametrize("which", ["another", "none"])
def test_loader_without_the_right_key_is_told_so_at_start(
    which: str, endpoint: RunningEndpoint, tmp_path: Path
) -> None:
    key = None
    if which == "another":
        key = tmp_path / "another.key"
        Keys.generate().write(key)
    with (
        SwiftLoader(
            datasets.Numbers,
            {"n": 4},
            worker_per_consumer=0,
            remote_workers=[endpoint.address],
            remote_key=key,
        ) as loader,
        pytest.raises(ConfigError, match="does not let this process in") as caught,
    ):
        loader.start(0)
    assert "remote_key" in str(caught.value)


def test_endpoint_that_is_no_endpoint_is_told_so_at_start(key_file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def hang_up() -> None:
            for _ in range(3):
                server.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with (
            SwiftLoader(
                datasets.Numbers,
                {"n": 4},
                worker_per_consumer=0,
                remote_workers=[f"tcp://127.0.0.1:{port}"],
                remote_key=key_file,
            ) as loader,
            pytest.raises(ConfigError, match="hangs up"),
        ):
            loader.start(0)
        thread.join()


def test_answers_take_turns_over_the_connections_of_a_session(
    endpoint: RunningEndpoint, key_file: Path, payload_fd: int
) -> None:
    keys = load_keys(key_file)
    with dealer(endpoint, keys) as peer, dealer(endpoint, keys) as second:
        welcome = session(peer, payload_fd)
        second.send_multipart(frames.pack_frames(messages.Attach(welcome.session, welcome.token)))
        for k in range(100):
            peer.send_multipart(frames.pack_frames(messages.MakeFrame(k, Number(0, 0, k))))
            if answer_of_any(peer, second) is second:
                break
        else:
            raise AssertionError("all came by the first")


def answer_of_any(*peers: zmq.Socket[Any]) -> zmq.Socket[Any]:
    """Who got the next batch."""
    poller = zmq.Poller()
    for peer in peers:
        poller.register(peer, zmq.POLLIN)
    while ready := poller.poll(20_000):
        for peer, _ in ready:
            told = list(frames.unpack_frames(peer.recv_multipart()))
            if any(isinstance(message, messages.MadeFrame) for message in told):
                return peer
    raise AssertionError("no batch came")


@pytest.mark.parametrize("token", ["", "0" * 64, "\u00e9" * 64, "\ud800"])
def test_connection_that_joins_a_session_of_others_is_refused(
    token: str, endpoint: RunningEndpoint, key_file: Path, payload_fd: int
) -> None:
    keys = load_keys(key_file)
    with dealer(endpoint, keys) as peer, dealer(endpoint, keys) as other:
        number = session(peer, payload_fd).session
        other.send_multipart(frames.pack_frames(messages.Attach(number, token)))
        assert "session" in answer(other, messages.Closing).why
        peer.send_multipart(frames.pack_frames(messages.MakeFrame(1, Number(0, 0, 1))))
        assert answer(peer, messages.MadeFrame).ticket == 1


def test_connections_of_a_session_are_bounded(
    endpoint: RunningEndpoint, key_file: Path, payload_fd: int
) -> None:
    keys = load_keys(key_file)
    with dealer(endpoint, keys) as peer, dealer(endpoint, keys) as other:
        welcome = session(peer, payload_fd)
        for _ in range(100):
            other.send_multipart(
                frames.pack_frames(messages.Attach(welcome.session, welcome.token))
            )
        assert "too many" in answer(other, messages.Closing).why


def test_endpoint_that_talks_nonsense_while_it_is_sent_to_is_a_lost_connection() -> None:
    """ZeroMQ ends such a connection at once: often between two frames of what `flush` sends."""
    long = bytes(SHORT_BYTES)  # of a frame of its own
    for _ in range(10):
        with nonsense() as address:
            fd = os.memfd_create("payload")
            os.write(fd, b"x")
            brief = Brief(Place(0, 1, 1, 0, None), fd, 0, 1, timeout_s=30.0)
            link = EndpointLink(0, Address(address, None, timeout_s=30.0), brief, "0" * 64)
            tickets = count()
            events: list[Event] = []
            deadline_s = time.monotonic() + 20
            while not events and time.monotonic() < deadline_s:
                for ticket in islice(tickets, 200):
                    link.make(ticket, Number(0, 0, ticket), long)
                link.flush()
                events = link.receive()
            link.close()
            link.wait_closed(time.monotonic() + 1)
            os.close(fd)
        assert [type(event) for event in events] == [Gone]


@contextmanager
def nonsense() -> Iterator[str]:
    """Shakes hands as a ZeroMQ socket does (ZMTP 3.0, NULL), listens a while, and sends noise."""
    ready = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 6) + b"ROUTER"
    shake = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)

    def talk() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.sendall(shake + struct.pack("BB", 4, len(ready)) + ready)
            nb_bytes = 0
            while nb_bytes < 200_000 and (part := peer.recv(1 << 16)):
                nb_bytes += len(part)
            peer.sendall(b"\xff" * 64)
            with suppress(ConnectionResetError):
                while peer.recv(1 << 20):
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        talking = threading.Thread(target=talk)
        talking.start()
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        talking.join(30)
