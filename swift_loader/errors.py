"""The exceptions that swift_loader defines. The message of each says what its text names.

An error out of your own code (a data set, a collate function) keeps its type. The loader raises it
again, and its ``__cause__`` is a `WorkerError` with the worker's traceback, the worker, the batch
number and the sample indices.
"""

from __future__ import annotations

from typing import NoReturn

__all__ = [
    "BatchError",
    "ClosedError",
    "ConfigError",
    "DroppedError",
    "EqualStepsError",
    "LoaderError",
    "NoRoomError",
    "PlanMismatchError",
    "ProducerEndedError",
    "ProducerGoneError",
    "SharingError",
    "ShippingError",
    "StateError",
    "TooManyBadSamplesError",
    "WorkerDiedError",
    "WorkerError",
    "WorkerTimeoutError",
    "refuse",
]


class LoaderError(Exception):
    """Base of every exception that swift_loader defines."""


class BatchError(LoaderError, TypeError, ValueError):
    """A batch can't be collated or encoded: the field, the shapes or types, and the fix."""


class ConfigError(LoaderError, ValueError, TypeError):
    """An option has a value that can't work: the option, the value and the fix."""


class ClosedError(LoaderError, RuntimeError):
    """A call came in the wrong order: `start` twice, or anything after `close`."""


class NoRoomError(LoaderError, OSError):
    """This process may have no more descriptors, processes or memory. Says how many it needs."""


class PlanMismatchError(LoaderError, RuntimeError):
    """The consumers of one run hold different plans: what differs, and on which rank."""


class EqualStepsError(LoaderError, RuntimeError):
    """With `equal_steps`, another consumer failed, is gone, or is not at the same batch."""


class SharingError(LoaderError, ConnectionError):
    """A producer and its consumers can't go on together: the address, and what to do."""


class ProducerGoneError(SharingError):
    """The producer is gone, or there is none at this address."""


class ProducerEndedError(ProducerGoneError):
    """The producer has done all that it was to do: no epoch follows."""


class DroppedError(SharingError):
    """The producer went on without this consumer, which may join again: the reason."""


class ShippingError(LoaderError, TypeError):
    """Something of yours can't travel to a worker process: which thing, and why."""


class StateError(LoaderError, ValueError):
    """A saved state does not fit this loader: the difference."""


class WorkerError(LoaderError, RuntimeError):
    """An error in a worker: its traceback, the worker, the batch and the sample indices.

    It is the cause of an error that the loader raises again. If that error can't travel between
    processes, the loader raises this one itself.
    """


class WorkerDiedError(WorkerError):
    """A worker process ended by itself (a signal, `os._exit`, out of memory) too often."""


class WorkerTimeoutError(WorkerError, TimeoutError):
    """No batch came within `timeout` seconds: the worker, the sample and the Python stack."""


class TooManyBadSamplesError(WorkerError):
    """More samples were skipped or replaced than `max_bad_samples` allows."""


def refuse(option: str, value: object, fix: str) -> NoReturn:
    """Raise the `ConfigError` of one option."""
    shown = repr(value)
    if len(shown) > 100:
        shown = shown[:100] + "…"
    raise ConfigError(f"{option}={shown}: {fix}")
