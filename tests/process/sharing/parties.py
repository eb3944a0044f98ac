"""Processes that share a loader, forked from the test: each runs one function and reports."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any

import torch

from swift_loader.sharing import TensorConsumer, TensorProducer

WAIT_S = 100.0  # on a machine that is busy with other tests, a start alone may take a minute


class Party:
    """A process that runs ``function(*arguments)``; it may report with `say` on the way."""

    context: BaseContext = multiprocessing.get_context("fork")

    def __init__(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        self._ours, theirs = self.context.Pipe()
        self.process = self.context.Process(  # type: ignore[attr-defined]
            target=_run, args=(theirs, function, arguments, named)
        )
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def hear(self) -> Any:
        """The next thing that it says."""
        assert self._ours.poll(WAIT_S), f"process {self.pid} said nothing in {WAIT_S} s"
        kind, value = self._ours.recv()
        assert kind != "raised", value
        return value

    def tell(self, value: Any = None) -> None:
        """What `ask` in it returns."""
        self._ours.send(value)

    def result(self) -> Any:
        """What the function returned; the process has ended then."""
        value = self.hear()
        self.process.join(WAIT_S)
        assert self.process.exitcode == 0
        return value

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait for it."""
        self.process.kill()
        self.process.join(WAIT_S)

    def end(self) -> None:
        if self.process.is_alive():
            self.signal(signal.SIGCONT)
            self.kill()
        self._ours.close()


@contextmanager
def starting(kind: type[Party] = Party) -> Iterator[Callable[..., Any]]:
    """Starts parties, and ends those that are left, whatever happened."""
    parties: list[Party] = []

    def start(*arguments: Any, **named: Any) -> Party:
        parties.append(kind(*arguments, **named))
        return parties[-1]

    yield start
    for one in parties:
        one.end()


_pipe: Connection | None = None


def say(value: Any) -> None:
    """In a party: tell the test something."""
    assert _pipe is not None
    _pipe.send(("said", value))


def ask() -> Any:
    """In a party: wait for `Party.tell`."""
    assert _pipe is not None
    return _pipe.recv()


def _run(
    pipe: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    named: dict[str, Any],
) -> None:
    global _pipe
    _pipe = pipe
    torch.set_num_threads(1)
    try:
        answer = "returned", function(*arguments, **named)
    except BaseException:  # noqa: BLE001 - the test gets it
        answer = "raised", traceback.format_exc()
    pipe.send(answer)


class Numbers:
    """A sized loader: batch `k` is ``(tensor full of the batch's number, its name)``."""

    def __init__(self, nb_batches: int, shape: tuple[int, ...] = (4, 1000)) -> None:
        self._nb_batches = nb_batches
        self._shape = shape
        self._epoch = 0

    def __len__(self) -> int:
        return self._nb_batches

    def __iter__(self) -> Iterator[tuple[torch.Tensor, str]]:
        epoch = self._epoch
        self._epoch += 1
        for k in range(self._nb_batches):
            number = 1000 * epoch + k
            yield torch.full(self._shape, number, dtype=torch.int32), f"batch {number}"


def number_of(batch: tuple[torch.Tensor, str]) -> int:
    """The number that a batch of `Numbers` says it is, in every element."""
    tensor, name = batch
    low, high = int(tensor.min()), int(tensor.max())
    assert low == high
    assert name == f"batch {low}"
    return low


def expected(nb_batches: int, epochs: int = 1) -> list[int]:
    return [1000 * epoch + k for epoch in range(epochs) for k in range(nb_batches)]


def produce(port: str, nb_batches: int, epochs: int = 1, wait_for: int = 1, **options: Any) -> Any:
    """Serve `Numbers`, from when `wait_for` consumers are there; gives how many batches it made."""
    shape = options.pop("shape", (4, 1000))
    with TensorProducer(Numbers(nb_batches, shape), port=port, **options) as producer:
        await_consumers(producer, wait_for)
        made = 0
        for _ in range(epochs):
            for _ in producer:
                made += 1
        producer.join()
    return made


def await_consumers(producer: TensorProducer, count: int) -> None:
    """Return when so many are there."""
    while len(producer.consumers()) < count:
        producer.serve(1.0)


def consume(port: str, epochs: int = 1, **options: Any) -> list[int]:
    """The numbers of all batches of some epochs, from one consumer."""
    numbers = []
    with TensorConsumer(port, **options) as consumer:
        for _ in range(epochs):
            for batch in consumer:
                numbers.append(number_of(batch))
                del batch
    return numbers
