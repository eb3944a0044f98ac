"""`TensorProducer`: one loader's batches for every consumer that comes. Role: the producer.

There is no thread: whoever iterates the producer serves its consumers (`Audience`) while it waits
for them.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import loguru
import torch

from swift_loader.errors import ClosedError, ConfigError, refuse
from swift_loader.loader.handing_on import hand_on, state_at
from swift_loader.loader.loader import SwiftLoader
from swift_loader.sharing.audience import Audience
from swift_loader.sharing.device import DeviceSlots
from swift_loader.sharing.history import Band
from swift_loader.sharing.loader_epochs import LoaderEpochs
from swift_loader.sharing.port import Port, PortOwner
from swift_loader.sharing.regions import OwnSlots, RegionTable, SharedBatch
from swift_loader.telemetry.figures import Reading
from swift_loader.telemetry.sinks.addresses import sinks_of
from swift_loader.telemetry.sinks.pump import Pumps, open_sinks
from swift_loader.telemetry.sinks.sink import Source

__all__ = ["ConsumerView", "TensorProducer"]

_BAND_BYTES = 1 << 28


@dataclass(frozen=True)
class ConsumerView:
    """A consumer as the producer sees it: the next batch sent to it, and batches behind."""

    name: str
    pid: int
    state: str
    epoch: int
    batch: int
    behind: int
    nb_taken: int
    seconds: float


class TensorProducer:
    """Shares the batches of a loader with the trainings on this machine that ask for them.

    >>> producer = TensorProducer(loader, port=5556)
    >>> for _ in range(epochs):
    ...     for _ in producer:
    ...         pass
    >>> producer.join()

    Each iteration is an epoch of the loader, and each step publishes a batch and gives its index.
    With nobody to publish to, it waits. After TensorSocket (Robroek et al., 2024), whose argument
    names are accepted.

    Parameters
    ----------
    data_loader:
        A `SwiftLoader` (its slots are handed on as they are, if it was not started before), a torch
        `DataLoader`, or any iterable of batches. An iterator serves for all epochs: with a length,
        each takes so many of its batches, and else the first takes all.
    port:
        A number or a name; a Unix socket in a private directory, nothing on the network.
    ack_port, heart_ports:
        Accepted and without meaning: one socket does it all.
    rubber_band_pct:
        The share of an epoch's batches (0.02 is 2%) that is kept from its beginning, so that who
        comes late can have the whole epoch; at least ``2 * consumer_max_buffer_size`` batches.
    pack_fn:
        ``batch -> batch``, called once here before a batch is shared.
    consumer_max_buffer_size:
        Batches that are sent to a consumer and not taken by it, at most. A consumer that is further
        behind holds the others up.
    producer_batch_size:
        Accepted and without meaning: every consumer cuts the stream into its own batches.
    device:
        Move batches to this CUDA device, once for all, and share them there. A `SwiftLoader` that
        was not started is started with it.
    rubber_band_bytes:
        Most bytes that the band may hold (default 256 MiB).
    lag_timeout:
        Seconds that the others (or `join`) wait for a consumer that takes nothing, until it is
        dropped; None: for ever. A consumer that holds nobody up may take any time.
    nb_samples:
        Samples in an epoch, where the loader can't tell: for ``len`` of consumers with a
        `batch_size`.
    wait_for:
        The first epoch begins when so many consumers are connected (default 1), so that trainings
        that start at different moments all have the whole of it.

    metrics:
        Where figures of the consumers go, as for `SwiftLoader`; see ``docs/metrics.md``.

    Raises
    ------
    ConfigError
        An argument is wrong.
    SharingError
        Another producer serves this port, or the directory is not private.
    """

    def __init__(
        self,
        data_loader: Iterable[Any],
        port: int | str = 5555,
        ack_port: object = None,
        heart_ports: object = None,
        rubber_band_pct: float = 0.02,
        pack_fn: Callable[[Any], Any] | None = None,
        consumer_max_buffer_size: int = 10,
        producer_batch_size: object = None,
        *,
        device: torch.device | str | None = None,
        rubber_band_bytes: int = _BAND_BYTES,
        lag_timeout: float | None = 300.0,
        nb_samples: int | None = None,
        wait_for: int = 1,
        metrics: Any = None,
    ) -> None:
        _check(rubber_band_pct, consumer_max_buffer_size, rubber_band_bytes, lag_timeout)
        if isinstance(wait_for, bool) or not isinstance(wait_for, int) or wait_for < 1:
            refuse("wait_for", wait_for, "give a number of consumers, at least 1")
        if not isinstance(data_loader, Iterable):
            raise ConfigError(
                f"data_loader is a {type(data_loader).__name__}, which can't be iterated over: "
                "give a loader, such as SwiftLoader or torch's DataLoader"
            )
        sinks = sinks_of("metrics", metrics)
        self._loader = data_loader
        band = Band(rubber_band_pct, 2 * consumer_max_buffer_size, rubber_band_bytes)
        lag_timeout_s = math.inf if lag_timeout is None else lag_timeout
        regions = RegionTable()
        self._port = Port(port)
        owner = PortOwner(self._port)
        try:
            put = _putting(data_loader, pack_fn, device, regions)
        except BaseException:
            owner.close()
            raise
        self._epochs = LoaderEpochs(data_loader, put, nb_samples)
        self._audience = Audience(
            owner, self._epochs, regions, band, consumer_max_buffer_size, lag_timeout_s, wait_for
        )
        self._finalizer = weakref.finalize(self, self._audience.close)
        self._sinks: Pumps | None = None
        if sinks:
            audience = self._audience  # the sinks must not hold the producer
            source = Source(str(self._port), lambda: _readings(audience))
            try:
                self._sinks = open_sinks(sinks, source, loguru.logger)
            except BaseException:
                self._finalizer()
                raise
            weakref.finalize(self, self._sinks.close)
        self._iterating = False
        self._closed = False

    # ---- the loop

    def __iter__(self) -> Iterator[int]:
        """Publish the loader's next epoch; gives the index of each batch.

        Waits as long as there is nobody who wants it. Ends early when all who are there came too
        late for this epoch and wait for the next.
        """
        self._check_open()
        if self._iterating:
            raise ClosedError("the producer is being iterated already: one epoch after the other")
        # An epoch that the script left early is over only now that it goes on: if it died instead,
        # its consumers must not take that for the end.
        self._audience.end_epoch()
        self._iterating = True
        return self._epoch()

    def _epoch(self) -> Iterator[int]:
        audience, epochs = self._audience, self._epochs
        try:
            audience.begin(epochs.begin())
            while self.wait() and audience.is_wanted:
                batch = epochs.next()
                if batch is None:
                    break
                index = audience.publish(batch)
                del batch
                yield index
            audience.end_epoch()
        except Exception as error:
            audience.drop_all(f"the producer's loader raised {type(error).__name__}: {error}")
            raise
        finally:
            epochs.end()
            self._iterating = False

    def wait(self, timeout: float | None = None) -> bool:
        """Serve consumers until the next step would not wait for them; False after `timeout` s.

        For scripts that have something else to do meanwhile; iterating waits by itself.
        """
        self._check_open()
        return self._audience.wait_for_room(_deadline_s(timeout))

    def serve(self, wait_s: float | None) -> None:
        """Do what consumers ask for; wait at most `wait_s` for the first of them (None: ever)."""
        self._check_open()
        self._audience.serve(wait_s)

    def join(self, timeout: float | None = None) -> None:
        """Wait until every consumer has been sent everything, tell them the end, and close.

        After `timeout` seconds, the rest is not waited for.
        """
        if self._closed:
            return
        self._audience.end_epoch()
        self._audience.finish(_deadline_s(timeout))
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the producer is closed; build a new one to go on")

    def close(self) -> None:
        """End now. Consumers keep the batches that they have, and get an error for the next."""
        self._closed = True
        self._finalizer()
        if self._sinks is not None:
            self._sinks.close()

    def __enter__(self) -> TensorProducer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ---- what a script may ask

    def __len__(self) -> int:
        """Batches of the loader's epoch. TypeError where it can't tell."""
        return len(self._loader)  # type: ignore[arg-type]

    @property
    def address(self) -> str:
        """Where consumers connect to."""
        return str(self._port)

    def consumers(self) -> list[ConsumerView]:
        """Who is connected, and where each one is."""
        now_s = time.monotonic()
        return [
            ConsumerView(
                m.name, m.pid, m.state, *m.position, m.behind, m.nb_taken, now_s - m.joined_s
            )
            for m in self._audience.members()
        ]

    def state_dict(self) -> dict[str, Any]:
        """The state of the `SwiftLoader` as if it had delivered what every consumer has taken.

        A producer of a loader that has loaded it (`SwiftLoader.load_state_dict`) goes on there, and
        consumers with ``reconnect=`` get each batch once.

        Raises `ConfigError` for other loaders, and `ClosedError` where batches have no numbers of
        their own (``in_order=False``, a stream, a sampler).
        """
        if not isinstance(self._loader, SwiftLoader):
            raise ConfigError("state_dict() needs a SwiftLoader: ask your own loader for its state")
        at = self._audience.taken_by_all()
        return self._loader.state_dict() if at is None else state_at(self._loader, *at)


def _readings(audience: Audience) -> list[Reading]:
    members = audience.members()
    readings = [Reading("swift_loader_producer_consumers", len(members))]
    for member in members:
        readings += [
            Reading("swift_loader_producer_consumer_batches_total", member.nb_taken, member.name),
            Reading("swift_loader_producer_consumer_behind", member.behind, member.name),
        ]
    return readings


def _deadline_s(timeout: float | None) -> float:
    return math.inf if timeout is None else time.monotonic() + timeout


def _putting(
    loader: Iterable[Any],
    pack_fn: Callable[[Any], Any] | None,
    device: torch.device | str | None,
    regions: RegionTable,
) -> Callable[[Any], SharedBatch]:
    """How a batch of this loader comes into memory that can be shared."""
    target = None if device is None else torch.device(device)
    if target is not None and target.type != "cpu":
        put: Callable[[Any], SharedBatch] = DeviceSlots(target, regions).put
        if (
            pack_fn is None
            and isinstance(loader, SwiftLoader)
            and loader.nb_consumer == 1
            and not loader.started
        ):
            loader.start(0, target)  # from pinned slots, ahead of us
    else:
        slots = OwnSlots(regions)
        if pack_fn is None and isinstance(loader, SwiftLoader):
            return slots.take if hand_on(loader, regions.on_map) else slots.put
        put = slots.put
    return put if pack_fn is None else lambda batch: put(pack_fn(batch))


def _check(band_share: float, max_sent: int, band_bytes: int, lag_timeout_s: float | None) -> None:
    if not 0 <= band_share <= 1:
        refuse("rubber_band_pct", band_share, "give a share of the epoch, in [0, 1]")
    if isinstance(max_sent, bool) or not isinstance(max_sent, int) or max_sent < 1:
        refuse("consumer_max_buffer_size", max_sent, "give a number of batches, at least 1")
    if band_bytes < 0:
        refuse("rubber_band_bytes", band_bytes, "give a number of bytes")
    if lag_timeout_s is not None and not lag_timeout_s > 0:
        refuse("lag_timeout", lag_timeout_s, "give seconds, or None to wait for ever")
