"""Several consumers on one producer: everything once, in order, private, whatever the others do."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from swift_loader.sharing import ProducerGoneError, TensorConsumer, TensorProducer
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


def test_consumers_of_any_speed_get_every_batch_once_and_in_order(party: Any, port: str) -> None:
    def slowly(pause_s: float) -> list[int]:
        numbers = []
        for batch in TensorConsumer(port):
            time.sleep(pause_s)
            numbers.append(number_of(batch))
        return numbers

    producer = party(produce, port, 60, wait_for=3)
    consumers = [party(slowly, pause_s) for pause_s in (0.0, 0.001, 0.004)]
    assert [c.result() for c in consumers] == [expected(60)] * 3
    assert producer.result() == 60


def test_what_a_consumer_writes_reaches_nobody_and_no_later_batch(party: Any, port: str) -> None:
    def scribble() -> list[int]:
        numbers = []
        for batch in TensorConsumer(port):
            numbers.append(number_of(batch))
            batch[0].fill_(-1)
        return numbers

    producer = party(produce, port, 100, wait_for=3)
    parties = [party(scribble), party(scribble), party(consume, port)]
    assert [p.result() for p in parties] == [expected(100)] * 3
    producer.result()


@pytest.mark.parametrize("max_kept", [3, 1000])
def test_batches_that_are_kept_stay_as_they_were(party: Any, port: str, max_kept: int) -> None:
    def keep() -> list[int]:
        return [number_of(batch) for batch in list(TensorConsumer(port, max_kept=max_kept))]

    producer = party(produce, port, 80, wait_for=2)
    keeper, other = party(keep), party(consume, port)
    assert keeper.result() == other.result() == expected(80)
    producer.result()


def test_a_view_keeps_its_batch_after_the_consumer_is_gone(party: Any, port: str) -> None:
    def keep_a_view() -> tuple[int, int]:
        consumer = TensorConsumer(port)
        view = next(consumer)[0][1:2].numpy()[:, ::2]
        del consumer
        say("left")
        ask()
        return int(view.min()), int(view.max())

    producer = party(produce, port, 200, wait_for=2, consumer_max_buffer_size=2)
    other, keeper = party(consume, port), party(keep_a_view)
    assert keeper.hear() == "left"
    assert other.result() == expected(200)
    keeper.tell()
    assert keeper.result() == (0, 0)
    producer.result()


def test_every_epoch_ends_once_after_its_last_batch(party: Any, port: str) -> None:
    def epochs() -> list[list[int]]:
        consumer = TensorConsumer(port)
        return [[number_of(batch) for batch in consumer] for _ in range(4)]

    producer = party(produce, port, 7, epochs=4, wait_for=2)
    consumers = [party(epochs), party(epochs)]
    numbers = expected(7, 4)
    wanted = [numbers[i : i + 7] for i in range(0, 28, 7)]
    assert [c.result() for c in consumers] == [wanted] * 2
    producer.result()


def test_a_new_consumer_for_each_epoch_gets_each_epoch(party: Any, port: str) -> None:
    # Only the first epoch waits for both. So nobody takes more than is kept before both are there.
    both = multiprocessing.get_context("fork").Barrier(2)

    def anew() -> list[int]:
        numbers = []
        for _ in range(3):
            with TensorConsumer(port) as consumer:
                both.wait(60)
                numbers += [number_of(batch) for batch in consumer]
        return numbers

    producer = party(produce, port, 50, epochs=3, wait_for=2)
    consumers = [party(anew), party(anew)]
    assert [c.result() for c in consumers] == [expected(50, 3)] * 2
    producer.result()


def test_len_is_right_for_every_batch_size(party: Any, port: str) -> None:
    def lengths(batch_size: int | None) -> list[tuple[int, int]]:
        consumer = TensorConsumer(port, batch_size=batch_size)
        return [(len(consumer), sum(1 for _ in consumer)) for _ in range(2)]

    def serve() -> None:
        dataset = torch.utils.data.TensorDataset(torch.arange(103))
        loader = torch.utils.data.DataLoader(dataset, batch_size=10)
        with TensorProducer(loader, port) as producer:
            await_consumers(producer, 3)
            for _ in range(2):
                for _ in producer:
                    pass
            producer.join()

    producer = party(serve)
    consumers = [party(lengths, size) for size in (None, 32, 7)]
    assert [c.result() for c in consumers] == [[(11, 11)] * 2, [(4, 4)] * 2, [(15, 15)] * 2]
    producer.result()


def test_every_consumer_cuts_the_stream_as_it_likes(party: Any, port: str) -> None:
    def rows(batch_size: int) -> tuple[list[int], list[int]]:
        sizes, values = [], []
        for (batch,) in TensorConsumer(port, batch_size=batch_size):
            sizes.append(len(batch))
            values += batch.tolist()
        return sizes, values

    def serve() -> None:
        batches = [(torch.arange(i, min(i + 10, 103)),) for i in range(0, 103, 10)]
        with TensorProducer(batches, port) as producer:
            await_consumers(producer, 2)
            for _ in producer:
                pass
            producer.join()

    producer = party(serve)
    by_32, by_4 = party(rows, 32), party(rows, 4)
    assert by_32.result() == ([32, 32, 32, 7], list(range(103)))
    assert by_4.result() == ([4] * 25 + [3], list(range(103)))
    producer.result()


def test_a_consumer_can_be_wrapped_and_old_argument_names_are_taken(party: Any, port: str) -> None:
    class Wrapped:
        def __init__(self) -> None:
            self.consumer = TensorConsumer(
                port=port, ack_port=1, heart_ports=(2, 3), unpack_fn=lambda batch: batch["packed"]
            )

        def __iter__(self) -> Wrapped:
            return self

        def __next__(self) -> Any:
            return next(self.consumer)

    def serve() -> None:
        producer = TensorProducer(
            Numbers(5),
            port=port,
            ack_port=1,
            heart_ports=(2, 3),
            rubber_band_pct=0.1,
            pack_fn=lambda batch: {"packed": batch},
            consumer_max_buffer_size=3,
            producer_batch_size=8,
        )
        for _ in producer:
            pass
        producer.join()

    producer = party(serve)
    consumer = party(lambda: [number_of(batch) for batch in Wrapped()])
    assert consumer.result() == expected(5)
    producer.result()


def test_a_break_goes_on_where_it_was(party: Any, port: str) -> None:
    def twice() -> list[int]:
        consumer = TensorConsumer(port)
        numbers = []
        for batch in consumer:
            numbers.append(number_of(batch))
            if len(numbers) == 4:
                break
        return numbers + [number_of(batch) for batch in consumer]

    producer = party(produce, port, 10)
    assert party(twice).result() == expected(10)
    producer.result()


def test_batches_of_any_kind_and_size_cross(party: Any, port: str) -> None:
    batches = [
        {"a": torch.arange(3).bfloat16(), "b": [None, "x" * 100_000], "c": torch.zeros(0, 4)},
        {"a": torch.randn(300_000), "b": list(range(5000)), "c": torch.eye(3).to_sparse()},
        {"a": 1, "b": None, "c": "no tensor at all"},
    ] * 5

    def serve() -> None:
        with TensorProducer(batches, port) as producer:
            for _ in producer:
                pass
            producer.join()

    def same() -> list[bool]:
        return [
            all(
                torch.equal(batch[key].to_dense(), wanted[key].to_dense())
                if isinstance(wanted[key], torch.Tensor)
                else batch[key] == wanted[key]
                for key in wanted
            )
            for batch, wanted in zip(TensorConsumer(port), batches, strict=True)
        ]

    producer = party(serve)
    assert party(same).result() == [True] * len(batches)
    producer.result()


def test_memory_and_descriptors_stay_flat_over_ten_thousand_batches(party: Any, port: str) -> None:
    def use() -> tuple[int, int]:
        pss = [
            int(line.split()[1])
            for line in Path("/proc/self/smaps_rollup").read_text().splitlines()
            if line.startswith("Pss:")
        ]
        return pss[0], len(os.listdir("/proc/self/fd"))

    def serve() -> tuple[Any, Any]:
        with TensorProducer(Numbers(500, (2, 5000)), port) as producer:
            await_consumers(producer, 2)
            for epoch in range(20):
                for _ in producer:
                    pass
                if epoch == 3:
                    before = use()
            after = use()
            producer.join()
        return before, after

    def read() -> tuple[Any, Any]:
        consumer = TensorConsumer(port)
        for epoch in range(20):
            for batch in consumer:
                batch[0][0, 0] = -1
            if epoch == 3:
                before = use()
        return before, use()

    for one in [party(serve), party(read), party(read)]:
        (kib_before, fds_before), (kib_after, fds_after) = one.result()
        assert kib_after - kib_before < 4096
        assert fds_after <= fds_before + 1


def test_a_consumer_may_come_before_its_producer(party: Any, port: str, directory: Path) -> None:
    consumer = party(consume, port)
    while not list(directory.glob("*.wait-*")):
        time.sleep(0.01)
    producer = party(produce, port, 5)
    assert consumer.result() == expected(5)
    producer.result()
    assert not list(directory.iterdir())


def test_no_producer_is_a_clear_error_in_time(port: str) -> None:
    with pytest.raises(ProducerGoneError, match=r"no producer came up at port 5556 .* 0\.2 s"):
        TensorConsumer(port, connect_timeout=0.2)


def test_memory_that_batches_have_outgrown_is_let_go(party: Any, port: str) -> None:
    class Growing:
        def __iter__(self) -> Any:
            for k in range(60):
                yield torch.full((1000 + 4000 * k,), k)

    def serve() -> None:
        with TensorProducer(Growing(), port, consumer_max_buffer_size=2) as producer:
            for _ in range(2):
                for _ in producer:
                    pass
            producer.join()

    def read() -> tuple[list[int], int]:
        consumer = TensorConsumer(port)
        sums = [int(batch.sum()) for _ in range(2) for batch in consumer]
        maps = Path("/proc/self/maps").read_text()
        return sums, maps.count("memfd:swift_loader")

    producer = party(serve)
    sums, nb_regions = party(read).result()
    assert sums == [k * (1000 + 4000 * k) for k in range(60)] * 2
    assert nb_regions < 20
    producer.result()
