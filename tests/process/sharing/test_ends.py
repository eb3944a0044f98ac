"""Consumers and producers that come late, leave early, freeze, or are killed."""

from __future__ import annotations

import os
import random
import signal
import socket
import stat
import time
from pathlib import Path
from typing import Any

import loguru
import pytest

from swift_loader.sharing import (
    DroppedError,
    ProducerEndedError,
    ProducerGoneError,
    SharingError,
    TensorConsumer,
    TensorProducer,
)
from tests.process.sharing.parties import (
    Numbers,
    ask,
    await_consumers,
    consume,
    expected,
    number_of,
    produce,
    say,
)


def _take(port: str, count: int, **options: Any) -> list[int]:
    consumer = TensorConsumer(port, **options)
    return [number_of(next(consumer)) for _ in range(count)]


def _pausing(port: str, pause_before: int, epochs: int = 1) -> list[int]:
    """Say "here" and wait to be told to go on before batch `pause_before`."""
    consumer = TensorConsumer(port)
    numbers: list[int] = []
    for _ in range(epochs):
        for batch in consumer:
            numbers.append(number_of(batch))
            if len(numbers) == pause_before:
                say("here")
                ask()
    return numbers


# ---- late and early


def test_who_comes_late_has_the_whole_epoch_within_the_band(party: Any, port: str) -> None:
    producer = party(produce, port, 40, rubber_band_pct=0.5)
    first = party(_pausing, port, 5)
    first.hear()
    late = party(_joined, port)
    assert late.hear() == 40
    first.tell()
    assert first.result() == late.result() == expected(40)
    producer.result()


def _joined(port: str, **options: Any) -> list[int]:
    """Say the length once the producer has answered; then take an epoch."""
    consumer = TensorConsumer(port, **options)
    say(len(consumer))
    return [number_of(batch) for batch in consumer]


def test_who_comes_after_the_band_gets_the_next_epoch_or_the_rest(party: Any, port: str) -> None:
    options = {"rubber_band_pct": 0.0, "consumer_max_buffer_size": 2}
    producer = party(produce, port, 40, epochs=2, **options)
    first = party(_pausing, port, 20, epochs=2)
    first.hear()
    next_epoch = party(_joined, port)
    rest = party(_joined, port, late="now")
    assert next_epoch.hear() == 40
    nb_left = rest.hear()
    assert 16 <= nb_left <= 20
    first.tell()
    assert first.result() == expected(40, 2)
    assert next_epoch.result() == expected(40, 2)[40:]
    assert rest.result() == expected(40)[40 - nb_left :]
    producer.result()


def test_an_epoch_that_nobody_wants_the_rest_of_is_cut_short(party: Any, port: str) -> None:
    options = {"rubber_band_pct": 0.0, "consumer_max_buffer_size": 1}
    producer = party(produce, port, 500, epochs=2, **options)
    assert party(_take, port, 5).result() == expected(5)
    assert party(consume, port).result() == expected(500, 2)[500:]
    assert producer.result() < 600


def test_who_leaves_early_disturbs_nobody(party: Any, port: str) -> None:
    producer = party(produce, port, 100, wait_for=2)
    stays, leaves = party(consume, port), party(_take, port, 7)
    assert leaves.result() == expected(7)
    assert stays.result() == expected(100)
    producer.result()


def test_a_producer_without_consumers_waits_and_says_so_once(party: Any, port: str) -> None:
    def serve() -> int:
        lines: list[str] = []
        loguru.logger.enable("swift_loader")
        loguru.logger.add(lambda line: lines.append(str(line)), level="INFO")
        with TensorProducer(Numbers(20), port) as producer:
            for k in producer:
                if k == 0:
                    say("first")
            producer.join()
        return sum("no consumer" in line for line in lines)

    producer = party(serve)
    consumer = party(consume, port)
    assert producer.hear() == "first"
    assert consumer.result() == expected(20)
    assert producer.result() <= 1


# ---- consumers that are killed or frozen


def test_a_hundred_consumers_killed_at_random_moments_disturb_nobody(party: Any, port: str) -> None:
    nb_batches = 1500

    def serve() -> tuple[int, int]:
        with TensorProducer(
            Numbers(nb_batches, (4, 5000)), port, consumer_max_buffer_size=4
        ) as producer:
            await_consumers(producer, 1)
            fds = len(os.listdir("/proc/self/fd"))
            for k in producer:
                if k % 15 == 0:
                    await_consumers(producer, 2)  # the next victim is there
            while len(producer.consumers()) > 1:
                producer.serve(1.0)
            producer.join()
            return fds, len(os.listdir("/proc/self/fd"))

    def victims(seed: int) -> None:
        draw = random.Random(seed)
        while True:  # at least a hundred: one each time that the producer waits for it
            pid = os.fork()
            if pid == 0:
                try:
                    consumer = TensorConsumer(port, late="now", connect_timeout=1.0)
                    kept = [next(consumer) for _ in range(draw.randrange(1, 12))]
                    kept[0][0].fill_(-1)
                finally:
                    os.kill(os.getpid(), signal.SIGKILL)
            os.waitpid(pid, 0)

    producer = party(serve)
    steady = party(consume, port)
    killed = party(victims, 1)
    assert steady.result() == expected(nb_batches)
    killed.kill()
    fds_before, fds_after = producer.result()
    slots = 2 * 4 + 3 * (4 + 12)  # the band, and three who have been sent 4 and keep 12
    assert fds_after <= fds_before + 3 * slots


def test_a_frozen_consumer_is_dropped_with_a_clear_error_and_may_rejoin(
    party: Any, port: str
) -> None:
    def freezes() -> Any:
        consumer = TensorConsumer(port)
        kept = next(consumer)
        say("ready")
        os.kill(os.getpid(), signal.SIGSTOP)
        held = number_of(kept)
        with pytest.raises(DroppedError, match=r"lag_timeout=0\.5.*join again"):
            for _ in consumer:
                pass
        with pytest.raises(DroppedError):
            next(consumer)
        again = TensorConsumer(port)
        say("again")
        return held, len([number_of(batch) for batch in again])

    producer = party(produce, port, 100, epochs=2, wait_for=2, lag_timeout=0.5)
    steady = party(_pausing, port, 100, epochs=2)
    frozen = party(freezes)
    assert frozen.hear() == "ready"
    assert steady.hear() == "here"  # it had the whole epoch
    frozen.signal(signal.SIGCONT)
    assert frozen.hear() == "again"
    steady.tell()
    assert steady.result() == expected(100, 2)
    assert frozen.result() == (0, 100)
    producer.result()


def test_a_loader_that_raises_is_told_to_every_consumer(party: Any, port: str) -> None:
    class Broken:
        def __iter__(self) -> Any:
            yield from Numbers(5)
            raise KeyError("sample 17")

    def serve() -> None:
        with TensorProducer(Broken(), port) as producer, pytest.raises(KeyError, match="sample 17"):
            for _ in producer:
                pass
            producer.join()

    def read() -> list[int]:
        numbers = []
        with pytest.raises(DroppedError, match=r"loader raised KeyError: 'sample 17'"):
            for batch in TensorConsumer(port):
                numbers.append(number_of(batch))
        return numbers

    producer = party(serve)
    assert party(read).result() == expected(5)
    producer.result()


# ---- producers that end


def test_a_killed_producer_is_a_clear_error_at_once_and_batches_stay(party: Any, port: str) -> None:
    def read() -> int:
        consumer = TensorConsumer(port)
        kept = next(consumer)
        say("one")
        with pytest.raises(
            ProducerGoneError, match=r"died, in epoch 0 before batch \d+.*reconnect"
        ):
            for _ in consumer:
                pass
        return number_of(kept)

    producer = party(produce, port, 10**6)
    reader = party(read)
    reader.hear()
    producer.kill()
    assert reader.result() == 0


def test_after_join_a_consumer_is_told_that_no_epoch_follows(party: Any, port: str) -> None:
    def read() -> None:
        consumer = TensorConsumer(port)
        assert len(list(consumer)) == 5
        with pytest.raises(ProducerEndedError, match="has ended: no epoch follows"):
            next(consumer)

    producer = party(produce, port, 5)
    party(read).result()
    producer.result()


def test_an_epoch_cut_off_by_the_producers_death_does_not_look_like_its_end(
    party: Any, port: str
) -> None:
    def serve() -> None:
        producer = TensorProducer(Numbers(100), port)
        for k in producer:
            if k == 20:
                raise SystemExit(0)

    def read() -> int:
        count = 0
        with pytest.raises(ProducerGoneError):
            for _ in TensorConsumer(port):
                count += 1
        return count

    party(serve)
    assert party(read).result() <= 21


def test_a_producer_that_comes_back_behind_or_at_a_consumer_goes_on_with_it(
    party: Any, port: str
) -> None:
    producer = party(produce, port, 60)
    consumer = party(_pausing_reconnecting, port)
    consumer.hear()
    producer.kill()
    consumer.tell()
    again = party(produce, port, 60)
    assert consumer.result() == expected(60)
    again.result()


def _pausing_reconnecting(port: str) -> list[int]:
    numbers = []
    for batch in TensorConsumer(port, reconnect=60.0):
        numbers.append(number_of(batch))
        if len(numbers) == 20:
            say("here")
            ask()
    return numbers


def test_a_producer_that_comes_back_with_another_loader_is_refused(party: Any, port: str) -> None:
    def read() -> None:
        with pytest.raises(SharingError, match="61 batches in epoch 0 where there were 60"):
            _pausing_reconnecting(port)

    producer = party(produce, port, 60)
    consumer = party(read)
    consumer.hear()
    producer.kill()
    consumer.tell()
    again = party(produce, port, 61)
    consumer.result()
    again.kill()


# ---- addresses


def test_two_producers_on_one_port_are_refused(party: Any, port: str) -> None:
    with TensorProducer(Numbers(5), port):
        other = party(lambda: TensorProducer(Numbers(5), port))
        with pytest.raises(AssertionError, match=rf"another producer \(process {os.getpid()}\)"):
            other.result()


def test_the_socket_of_a_dead_producer_is_replaced(party: Any, port: str, directory: Path) -> None:
    producer = party(produce, port, 5)
    while not (directory / f"{port}.sock").exists():
        time.sleep(0.01)
    producer.kill()
    assert (directory / f"{port}.sock").exists()
    again, consumer = party(produce, port, 5), party(consume, port)
    assert consumer.result() == expected(5)
    again.result()


def test_only_the_user_can_enter_the_directory(port: str, directory: Path) -> None:
    with TensorProducer(Numbers(5), port):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    directory.chmod(0o755)
    with pytest.raises(SharingError, match="mode 0700"):
        TensorConsumer(port)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_another_user_is_sent_away_before_anything_is_read(
    party: Any, port: str, directory: Path
) -> None:
    def intrude() -> str:
        with socket.socket(socket.AF_UNIX) as sock:
            os.chdir(directory)
            os.setuid(65534)
            sock.connect(f"{port}.sock")
            try:
                sock.sendall(b"\x05\0\0\0\x03junk")
                return "sent away" if sock.recv(100) == b"" else "it got an answer"
            except ConnectionError:
                return "sent away"

    producer = party(produce, port, 20)
    while not (directory / f"{port}.sock").exists():
        time.sleep(0.01)
    directory.chmod(0o777)
    (directory / f"{port}.sock").chmod(0o777)
    intruder = party(intrude)
    assert intruder.result() == "sent away"
    directory.chmod(0o700)
    assert party(consume, port).result() == expected(20)
    producer.result()


def test_junk_from_a_process_of_ones_own_disturbs_nobody(
    party: Any, port: str, directory: Path
) -> None:
    producer = party(produce, port, 20)
    while not (directory / f"{port}.sock").exists():
        time.sleep(0.01)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(directory / f"{port}.sock"))
        sock.sendall(b"\x05\0\0\0\x03junk")
        assert party(consume, port).result() == expected(20)
    producer.result()
