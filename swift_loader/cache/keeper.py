"""The training process's end of a store: it keeps it alive, and asks how it is going."""

from __future__ import annotations

import threading
import warnings
from contextlib import suppress

from swift_loader.cache.client import Client, StoreGoneError, StoreSilentError
from swift_loader.cache.naming import StoreName
from swift_loader.cache.starting import connect_or_start
from swift_loader.telemetry.cache_stats import CacheStats
from swift_loader.telemetry.figures import PREFIX, Reading
from swift_loader.transport.channel import Channel

__all__ = ["Keeper"]


class Keeper:
    """Holds a connection from `hold` to `close`: workers may come and go, and the store stays.

    May be used from any thread. Without a name, there is no cache.
    """

    def __init__(self, name: StoreName | None) -> None:
        self._name = name
        self._consumer = 0
        self._client: Client | None = None
        self._begun: Channel | None = None
        self._lock = threading.Lock()
        self._last: CacheStats | None = None
        self._silent = False  # the store is there and doesn't answer: nobody asks it again

    def begin(self, nb_samples: int | None) -> None:
        """Start the store, where there is none, and don't wait for it: workers start meanwhile."""
        if self._name is not None:
            with suppress(OSError):  # `hold` tries again
                self._begun = connect_or_start(self._name.of_length(nb_samples).address)

    def hold(self, nb_samples: int | None, consumer: int) -> None:
        """Connect to the store of a data set of this length. Where there is none, workers warn.

        Files that were wanted and can't be used are said here, once.
        """
        if self._name is None:
            return
        self._name, self._consumer = self._name.of_length(nb_samples), consumer
        self._last = CacheStats()
        with self._lock:
            self._connect()
            self._end_begun()
            note = self._client.note if self._client is not None else ""
        if note:
            warnings.warn(f"the cache's files: {note}", RuntimeWarning, stacklevel=2)

    def figures(self) -> CacheStats | None:
        """How it is going; what was known last where the store is gone."""
        with self._lock:
            if self._last is None:
                return None
            if self._silent:
                return self._last
            if self._client is None or self._client.closed:
                self._connect()
            if self._client is not None:
                try:
                    self._last = self._client.figures(self._consumer)
                except StoreGoneError as error:
                    self._silent = isinstance(error, StoreSilentError)
                    self._client = None
            return self._last

    def readings(self) -> list[Reading]:
        """The same for sinks of metrics; none without a cache."""
        found = self.figures()
        if found is None:
            return []
        values = {
            "cache_hits_total": found.hits,
            "cache_misses_total": found.misses,
            "cache_hit_bytes_total": found.hit_bytes,
            "cache_saved_seconds_total": found.saved_s,
            "cache_evicted_total": found.evicted,
            "cache_memory_bytes": found.memory_used,
            "cache_memory_limit_bytes": found.memory_size,
            "cache_disk_bytes": found.disk_used,
        }
        return [Reading(PREFIX + name, value) for name, value in values.items()]

    def close(self) -> None:
        """Let the store go."""
        with self._lock:
            if self._client is not None:
                self._client.close()
            self._client = self._name = None
            self._end_begun()

    def _end_begun(self) -> None:
        if self._begun is not None:
            self._begun.close()
            self._begun = None

    def _connect(self) -> None:
        if self._name is None:
            return
        try:
            self._client = Client(self._name, self._consumer)
        except StoreGoneError as error:
            self._silent = isinstance(error, StoreSilentError)
            self._client = None
