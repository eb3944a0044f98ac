"""The keys of a batch, as a sampler gave them, on their way to a worker.

Plain integers travel as int64, little endian, and are never unpickled. Anything else is pickled,
so that the dataset is asked with the very types and values of the sampler; a pickle is padded to a
length that is no multiple of eight, which tells the two apart. Keys of classes of `__main__` take
these along, where the workers have not run the script.
"""

from __future__ import annotations

import io
import pickle
from array import array
from collections.abc import Container
from typing import Any

import dill
import numpy as np

from swift_loader.batch.byvalue import ByValue
from swift_loader.batch.identity import main_has
from swift_loader.errors import ShippingError

__all__ = ["KeptKeys", "decode_keys", "encode_keys", "told_by"]

_WORD_BYTES = 8


class KeptKeys(bytes):
    """A batch that stays in this process; as bytes, what tells it from others in a checksum."""

    batch: Any

    @classmethod
    def of(cls, batch: Any) -> KeptKeys:
        """The batch as it is, whether or not it could travel."""
        try:
            kept = cls(encode_keys(batch))
        except ShippingError:
            kept = cls(_odd(_contents(batch)))
        kept.batch = batch
        return kept


class _ByValueKeys(bytes):
    """Keys with their classes, which are told apart by `plain`: it is the same in each process."""

    plain: bytes


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, 5)
        self._by_value = ByValue(keeps=True)

    def reducer_override(self, obj: Any) -> Any:
        return self._by_value.reduce(obj)


def told_by(details: bytes) -> bytes:
    """What tells these details from others, in this process and the next."""
    return details.plain if type(details) is _ByValueKeys else details


def _contents(batch: Any) -> bytes:
    """Tells keys that can't travel from others, so that a sampler that gives others is noticed."""
    try:
        told: bytes = dill.dumps(batch, recurse=True)
    except Exception:  # noqa: BLE001 - dill calls the user's code, which raises what it likes
        told = repr(batch).encode("utf-8", "surrogatepass")
    return told


def encode_keys(batch: Any, of_main: Container[str] | None = None) -> bytes:
    """The details of a batch of keys. Raises `ShippingError` where one can't travel.

    `of_main`: the names of `__main__` that workers have; None: all that there are.
    """
    if type(batch) is list and set(map(type, batch)) == {int}:
        try:
            words = array("q", batch)
        except OverflowError:
            pass  # longer than 64 bits
        else:
            return np.asarray(words, "<i8").tobytes()
    try:
        data = pickle.dumps(batch, 5)
        if of_main is not None and b"__main__" in data:
            return _with_classes(batch, _odd(data), of_main)
    except Exception as error:
        raise ShippingError(
            f"the sampler gave {batch!r:.200}, which can't travel to a worker: "
            f"{type(error).__name__}: {error}"
        ) from error
    return _odd(data)


def _with_classes(batch: Any, plain: bytes, of_main: Container[str]) -> bytes:
    file = io.BytesIO()
    with main_has(of_main):
        _Pickler(file).dump(batch)
    keys = _ByValueKeys(_odd(file.getvalue()))
    keys.plain = plain
    return keys


def _odd(data: bytes) -> bytes:
    """Of a length that is no multiple of eight: not plain."""
    return data if len(data) % _WORD_BYTES else data + b"\0"


def decode_keys(details: bytes) -> tuple[Any, bool]:
    """``(batch, plain)``: what `encode_keys` was given, and whether that was a list of int64.

    To be called with bytes from the own training process, or from one that has proved its key.
    """
    plain = len(details) % _WORD_BYTES == 0
    if type(details) is KeptKeys:
        return details.batch, plain
    if plain:
        return np.frombuffer(details, "<i8").tolist(), True
    return pickle.loads(details), False
