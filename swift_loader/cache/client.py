"""A client's end of the store: it asks, and reads and writes the memory and the files that it maps.

Role: part of a worker, or of a training process that asks for figures. For one thread. A store that
is gone is an error of no client: it is started anew once, and where that does not help the caller
goes on without.
"""

from __future__ import annotations

import os
import select
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from swift_loader.cache.directory import Directory, directory_bytes
from swift_loader.cache.extents import BLOCK_BYTES
from swift_loader.cache.files import ForeignError, checksum, data_path, open_private
from swift_loader.cache.messages import (
    CLAIMING,
    GOING_ON,
    IN_FILE,
    IN_MEMORY,
    LOOKING,
    WAITING,
    Answer,
    Ask,
    Course,
    Done,
    Enter,
    Entered,
    Heard,
    Keep,
    Placed,
    Room,
    Rows,
    Tell,
    Told,
    Trouble,
)
from swift_loader.cache.naming import StoreName
from swift_loader.cache.starting import connect_or_start
from swift_loader.cache.tallies import tally_at
from swift_loader.plan import Plan
from swift_loader.telemetry.cache_stats import CacheStats
from swift_loader.transport.channel import Channel, ChannelClosedError
from swift_loader.transport.memory import map_aligned, map_private
from swift_loader.transport.table import pack, unpack

__all__ = ["Client", "StoreGoneError", "StoreSilentError", "Use"]

T = TypeVar("T")
_ENTERED_WITHIN_S = 60.0
"""Seconds until the store lets in: it may read a long index first."""
_ANSWER_WITHIN_S = 20.0
"""Seconds for any other answer: the store may be at work for others."""
_FIGURES_WITHIN_S = 5.0
"""Seconds for its figures: no batch waits for them, but the end of a run does."""
_TRIES = 3
_NONE = np.empty(0, np.int64)


class StoreGoneError(Exception):
    """There is no store, or it doesn't answer. What was asked may be asked of the next one."""


class StoreSilentError(StoreGoneError):
    """The store is there and doesn't answer."""

    def __init__(self) -> None:
        super().__init__("the store does not answer: its process is stopped, or its disk hangs")


@dataclass(frozen=True, slots=True)
class Use:
    """What samples are for: batch `k` of `epoch` for `consumer`; `ahead` of its time."""

    variant: int
    epoch: int
    k: int
    consumer: int
    ahead: bool = False


class Client:
    """See the module's text. Connects at once; raises `StoreGoneError` where that can't be."""

    def __init__(self, name: StoreName, consumer: int, plan: Plan | None = None) -> None:
        self.name = name
        self.silent = False  # the store is there and didn't answer: there is no use in another one
        self._plan = plan
        self._serial = self._finished = 0
        self._folder: Path | None = None
        self._segments: dict[int, NDArray[np.uint8]] = {}
        self._places: dict[int, tuple[int, memoryview]] = {}
        self._files: dict[int, int] = {}  # descriptors that are written to
        self._memory_fd = -1
        self._channel: Channel | None = None
        for left in reversed(range(_TRIES)):
            try:
                self._enter(consumer)
                return
            except (ChannelClosedError, OSError, StoreGoneError) as error:
                self.close()
                if isinstance(error, StoreSilentError):
                    raise
                if not left or isinstance(error, ForeignError):
                    raise StoreGoneError(str(error)) from error

    def _enter(self, consumer: int) -> None:
        channel = self._channel = connect_or_start(self.name.address)
        channel.send(*pack(Enter(self.name, consumer)))
        entered = self._receive(Entered, _ENTERED_WITHIN_S)
        if entered is None:
            raise self._silent()
        fd = channel.take_fd()
        try:
            length = entered.span + directory_bytes(self.name.nb_samples)
            self._mapping, start = map_aligned(fd, length, BLOCK_BYTES)
        except BaseException:
            os.close(fd)
            raise
        self._memory_fd = fd
        whole = np.frombuffer(self._mapping, np.uint8, length, start)
        self._memory: NDArray[np.uint8] = whole[: entered.span]
        self.directory = Directory(whole[entered.span :])
        self.tally = tally_at(self.directory.tallies_bytes, entered.place)
        self._folder = Path(entered.folder) if entered.folder is not None else None
        self.note = entered.note
        if self._plan is not None:
            self.follow(self._plan)

    def close(self) -> None:
        """Leave. Views over the memory stay valid. May be called again."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        for fd in (self._memory_fd, *self._files.values()):
            if fd >= 0:
                os.close(fd)
        self._memory_fd = -1
        self._files.clear()

    @property
    def closed(self) -> bool:
        """Whether there is no connection any more."""
        return self._channel is None

    # ---- asking

    def follow(self, plan: Plan) -> None:
        """Epochs go by this plan."""
        self._plan = plan
        self._send(Course(plan))

    def ask(self, keys: Rows, use: Use) -> tuple[int, Rows]:
        """``(serial, rows)``: where `keys` are, see `Answer`; `done` ends the look at them."""
        return self._ask(CLAIMING, keys, use)

    def wait(self, keys: Rows, use: Use, within_s: float) -> tuple[int, Rows] | None:
        """The same, once what others make of them is there; None where that takes too long."""
        found = self._ask(WAITING, keys, use, within_s)
        return None if found[1] is None else found

    def look(self, keys: Rows, use: Use) -> int:
        """The serial of a question after `keys`; `looked` takes the answer, before any other."""
        return self._put(LOOKING, keys, use)

    def looked(self) -> Rows:
        """The rows of the answer to `look`."""
        answer: Answer = self._receive(Answer)
        return answer.rows

    def goes_on(self, use: Use) -> None:
        """All up to `use` was where the directory said that it lies."""
        self._put(GOING_ON, _NONE, use)

    def _put(self, how: int, keys: Rows, use: Use) -> int:
        self._serial += 1
        done, self._finished = self._finished, 0
        about = (use.variant, use.epoch, use.k, use.consumer, use.ahead)
        self._send(Ask(self._serial, done, *about, keys, how))
        return self._serial

    def _ask(
        self, how: int, keys: Rows, use: Use, within_s: float | None = None
    ) -> tuple[int, Any]:
        serial = self._put(how, keys, use)
        answer = self._receive(Answer, within_s)
        if answer is None:
            self._give_up(serial, use, keys)
            return serial, None
        return serial, answer.rows

    def _give_up(self, serial: int, use: Use, keys: Rows) -> None:
        """What was asked is not wanted any more: an answer that has crossed this is undone."""
        self.done(serial)
        self.keep([(use.variant, int(key), 0, 0, 0) for key in keys])
        self._late = serial

    _late = 0

    def done(self, serial: int) -> None:
        """Nothing of this answer is looked at any more."""
        self._send(Done(serial))

    def done_soon(self, serial: int) -> None:
        """The same, said with the next question: one message less a batch."""
        if self._finished:
            self.done(self._finished)
        self._finished = serial

    def figures(self, consumer: int) -> CacheStats:
        """How it is going."""
        self._send(Tell(consumer))
        told: Told | None = self._receive(Told, _FIGURES_WITHIN_S)
        if told is None:
            raise self._silent()
        return told.figures

    # ---- reading

    def bytes_at(self, row: list[int]) -> NDArray[np.uint8] | None:
        """The bytes that a row of an answer tells of; None where they are damaged or gone."""
        kind, segment, offset, numbers, skeleton, check = row
        end = offset + numbers + skeleton
        if kind == IN_MEMORY:
            return self._memory[offset:end]
        assert kind == IN_FILE
        found = self._segment(segment)
        if found is None or end > len(found):
            return None
        data = found[offset:end]
        return data if check < 0 or checksum(data) == check else None

    def lying(self, rows: Rows) -> tuple[bytes, list[int]] | None:
        """The skeleton that all these samples have, and the address of each one's numbers.

        None where they differ, or one of them isn't there, or must be looked at first.
        """
        skeleton = b""
        addresses: list[int] = []
        last: int | None = None
        for kind, segment, offset, numbers, length, check in rows.tolist():
            if kind != IN_MEMORY and (kind != IN_FILE or check >= 0):
                return None
            if segment != last:
                place = self._places.get(segment) or self._place(segment)
                if place is None:
                    return None
                start, view = place
                last = segment
            end = offset + numbers
            own = view[end : end + length].tobytes()  # to compare views takes far longer
            if own != skeleton:
                if skeleton:
                    return None
                skeleton = own
            addresses.append(start + offset)
        return skeleton, addresses

    def _place(self, segment: int) -> tuple[int, memoryview] | None:
        """Address and bytes of a segment, or of the memory: -1."""
        found = self._memory if segment < 0 else self._segment(segment)
        if found is None:
            return None
        place = self._places[segment] = found.ctypes.data, found.data
        return place

    def _segment(self, segment: int) -> NDArray[np.uint8] | None:
        found = self._segments.get(segment)
        if found is None:
            assert self._folder is not None
            try:
                fd = open_private(data_path(self._folder, segment), os.O_RDONLY)
            except OSError:
                return None
            try:
                # Private, so that it is writable: torch warns of tensors that are not.
                found = np.frombuffer(map_private(fd, os.fstat(fd).st_size), np.uint8)
            finally:
                os.close(fd)
            self._segments[segment] = found
        return found

    # ---- writing

    def room(self, rows: Sequence[tuple[int, ...]]) -> Rows:
        """Where samples may be written: the rows of `Placed` for rows of `Room`."""
        self._serial += 1
        table = np.array(rows, np.int64).reshape(-1, 8)
        self._send(Room(self._serial, table))
        placed: Placed = self._receive(Placed)
        return placed.rows

    def write_memory(self, offset: int, pieces: list[Any], nbytes: int, is_there: bool) -> None:
        """Put buffers, of `nbytes` together, one after the other.

        By the descriptor, unless the memory is there: through the mapping, each fresh page would be
        faulted in and filled with zeros first.
        """
        if is_there:
            for piece in pieces:
                data = np.frombuffer(piece, np.uint8)
                self._memory[offset : offset + len(data)] = data
                offset += len(data)
            return
        done = 0
        if sys.platform == "linux":
            with suppress(OSError):  # a limit of files' sizes, which the mapping doesn't have
                done = os.pwritev(self._memory_fd, pieces, offset)
        if done < nbytes:
            data = np.frombuffer(b"".join(pieces), np.uint8)
            self._memory[offset + done : offset + nbytes] = data[done:]

    def write_file(self, segment: int, offset: int, pieces: list[Any], nbytes: int) -> int | None:
        """The same into a segment: the checksum of all; None where it can't be written.

        The first client that finds out says so by a warning.
        """
        try:
            fd = self._writable(segment)
            written = os.pwritev(fd, pieces, offset)
            if written == nbytes:
                return checksum(*pieces)
            why = "there is no room left"
        except OSError as error:
            why = str(error)
        self._send(Trouble(why))
        heard: Heard = self._receive(Heard)
        if heard.first:
            warnings.warn(
                f"the cache's files in {self._folder} can't be written any more: {why}. What is "
                "there is used; what is new is kept in memory only. Give more room, or a smaller "
                "disk_size",
                RuntimeWarning,
                stacklevel=2,
            )
        return None

    def _writable(self, segment: int) -> int:
        fd = self._files.get(segment)
        if fd is None:
            assert self._folder is not None
            for old in list(self._files)[:-1]:  # room is dealt out of the latest
                os.close(self._files.pop(old))
            fd = self._files[segment] = open_private(data_path(self._folder, segment), os.O_RDWR)
        return fd

    def keep(self, rows: Sequence[tuple[int, ...]]) -> None:
        """These are written, or not: rows of `Keep`."""
        self._serial += 1
        self._send(Keep(self._serial, np.array(rows, np.int64).reshape(-1, 5)))

    # ---- inside

    def _send(self, message: object) -> None:
        if self._channel is None:
            raise StoreGoneError("the connection to the store is closed")
        try:
            self._channel.send(*pack(message))
        except ChannelClosedError as error:
            self.close()
            raise StoreGoneError(str(error)) from error

    def _silent(self) -> StoreSilentError:
        self.close()
        self.silent = True
        return StoreSilentError()

    def _receive(self, kind: type[T], within_s: float | None = None) -> Any:
        """The next message, of this kind; None where `within_s` is over before."""
        channel = self._channel
        if channel is None:
            raise StoreGoneError("the connection to the store is closed")
        ends_s = time.monotonic() + (_ANSWER_WITHIN_S if within_s is None else within_s)
        poll = select.poll()
        poll.register(channel, select.POLLIN)
        try:
            while True:
                left_s = ends_s - time.monotonic()
                if left_s <= 0 or not poll.poll(left_s * 1000):
                    if within_s is not None:
                        return None
                    raise self._silent()
                for frame in channel.receive(wait=False):
                    message = unpack(*frame)
                    if isinstance(message, Answer) and message.serial <= self._late:
                        continue  # of a wait that was given up
                    assert isinstance(message, kind)
                    return message
        except ChannelClosedError as error:
            if kind is Entered:
                raise
            self.close()
            raise StoreGoneError(str(error)) from error
