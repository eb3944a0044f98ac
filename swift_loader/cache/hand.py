"""What a data set keeps by hand: ``swift_loader.cache.current().get(key, make)``.

Its keys are any plain values: strings, numbers, bytes, and tuples of these. In the store, such a
key is a negative number made of it; the key itself lies beside the value and is compared, so that
two keys of one number are never mixed up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from typing import Any, TypeVar

import numpy as np

from swift_loader.cache.client import Client, StoreGoneError, Use
from swift_loader.cache.kept import Writer
from swift_loader.cache.messages import BUSY, TO_MAKE, UNPLANNED
from swift_loader.cache.naming import StoreName
from swift_loader.cache.samples import rebuilt

__all__ = ["ByHand", "current", "set_current"]

T = TypeVar("T")
_WAIT_S = 10.0


class ByHand:
    """The cache of this process's loader. Without a loader or a cache, nothing is kept."""

    def __init__(self, name: StoreName | None = None, consumer: int = 0) -> None:
        self._name = name
        self._use = Use(0, UNPLANNED, 0, consumer)
        self._local = threading.local()  # a data set may fetch in threads
        self._clients: list[Client] = []
        self._given_up = name is None

    def get(self, key: Any, make: Callable[[], T]) -> T:
        """The value under `key`. If there is none, calls `make()` and keeps what that returns.

        `key` is a string, bytes, a number, or a tuple of these. The caller gets a copy, and may
        change it. Raises what `make` raises, and `TypeError` for another kind of key.
        """
        text = _text_of(key)
        number = -1 - (int.from_bytes(blake2b(text, digest_size=8).digest(), "little") >> 1)
        try:
            client = self._connected()
            if client is not None:
                return self._through(client, number, text, make)
        except StoreGoneError:
            pass
        return make()

    def close(self) -> None:
        """Leave the store."""
        self._given_up = True
        for client in self._clients:
            client.close()

    def _connected(self) -> Client | None:
        client: Client | None = getattr(self._local, "client", None)
        if client is not None and not client.closed:
            return client
        self._given_up = self._given_up or (client is not None and client.silent)
        if self._given_up:
            return None
        assert self._name is not None
        try:
            client = self._local.client = Client(self._name, self._use.consumer)
        except StoreGoneError:
            self._given_up = True
            raise
        self._clients.append(client)
        self._local.writer = Writer()
        return client

    def _through(self, client: Client, number: int, text: bytes, make: Callable[[], T]) -> T:
        keys = np.array([number], np.int64)
        serial, rows = client.ask(keys, self._use)
        if rows[0, 0] == BUSY:
            found = client.wait(keys, self._use, _WAIT_S)
            if found is None:
                return make()
            serial, rows = found
        if rows[0, 0] != TO_MAKE:
            row = rows[0].tolist()
            data = client.bytes_at(row)
            if data is not None:
                kept, value = rebuilt(data, row[3], copy=True)
                client.done(serial)
                return value if kept == text else make()
            client.done(serial)
            return make()
        began_s = time.perf_counter()
        try:
            value = make()
        except BaseException:
            client.keep([(0, number, 0, 0, 0)])
            raise
        cost_s = time.perf_counter() - began_s
        with suppress(StoreGoneError):
            self._local.writer.put(client, [(number, (text, value))], self._use, cost_s)
        return value


def _text_of(key: Any) -> bytes:
    if isinstance(key, (str, bytes, int, float, bool)):
        return f"{type(key).__name__} {key!r}".encode("utf-8", "surrogatepass")
    if isinstance(key, tuple):
        return b"(" + b",".join(map(_text_of, key)) + b")"
    raise TypeError(f"a key is a string, bytes, a number or a tuple of these, not {key!r:.100}")


_nothing = ByHand()
_current: list[ByHand] = []


def current() -> ByHand:
    """The cache of the loader that this process works for; its method `get` keeps values.

    A data set calls it in `__getitem__` or `__iter__`. Works in any process: where there is no
    loader or no cache, `get` calls the function each time.
    """
    return _current[-1] if _current else _nothing


def set_current(by_hand: ByHand | None) -> None:
    """From now on this is the process's; None: there is none."""
    _current[:] = [] if by_hand is None else [by_hand]
