"""The store of a host: the process that holds a cache's memory and keeps its books.

Role: answers the clients of one cache; see `swift_loader.cache.messages` for who says what. It
receives and sends on sockets whose other end is a process of the same user, by the kernel's word.

It is started by the first client that finds none, belongs to no other process, and ends when the
last client has left. Its memory is an anonymous file: when the store is killed, the system frees it
with the last client's mapping, and the clients start another one.
"""

from __future__ import annotations

import ctypes
import selectors
import signal
import socket
import sys
from contextlib import suppress
from mmap import PAGESIZE

import numpy as np

from swift_loader.cache.blocks import Blocks
from swift_loader.cache.books import Books, Reply
from swift_loader.cache.directory import Directory, directory_bytes
from swift_loader.cache.files import Index, folder_of, write_about
from swift_loader.cache.messages import (
    GOING_ON,
    WAITING,
    Ask,
    Course,
    Done,
    Enter,
    Entered,
    Heard,
    Keep,
    Placed,
    Room,
    Tell,
    Told,
    Trouble,
)
from swift_loader.cache.naming import StoreName
from swift_loader.cache.tallies import Tallies
from swift_loader.transport.channel import Channel, ChannelClosedError
from swift_loader.transport.memory import create_region, map_shared
from swift_loader.transport.peer import same_user
from swift_loader.transport.table import MessageError, pack, unpack

__all__ = ["main"]

_FIRST_CLIENT_WITHIN_S = 30.0
_SPAN = 4  # times the bound; see `extents`
_PUNCH_HOLE_KEEP_SIZE = 3


def main(listener_fd: int) -> None:
    """The whole life of a store. Its standard streams are closed to the world."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    Store(socket.socket(fileno=listener_fd)).serve()


class Store:
    """See the module's text."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._channels: dict[int, Channel] = {}
        self._entered: set[int] = set()
        self._books: Books | None = None
        self._index: Index | None = None
        self._region = -1
        self._blocks: Blocks | None = None
        self._directory: Directory | None = None
        self._tallies = Tallies(np.zeros(0, np.uint8))
        self._span = 0
        self._note = ""
        self._in_trouble = False

    def serve(self) -> None:
        """Until the last client has left."""
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        had_clients = False
        while self._channels or not had_clients:
            ready = self._selector.select(None if had_clients else _FIRST_CLIENT_WITHIN_S)
            if not ready and not had_clients:
                break
            for key, _ in ready:
                if key.fileobj is self._listener:
                    self._accept()
                    had_clients = had_clients or bool(self._channels)
                elif key.fd in self._channels:
                    self._hear(key.fd)
            self._give_back()
            if had_clients and not self._channels:
                self._accept()  # one that has come just now
        self._listener.close()  # from now on, who comes starts another store
        for channel in self._channels.values():
            channel.close()
        if self._index is not None:
            self._index.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # no descriptor left: whoever it is goes on without a cache
                return
            if not same_user(sock):
                sock.close()
                continue
            channel = Channel(sock)
            self._channels[channel.fileno()] = channel
            self._selector.register(channel, selectors.EVENT_READ)

    def _hear(self, client: int) -> None:
        channel = self._channels[client]
        try:
            for frame in channel.receive(wait=False):
                self._do(client, unpack(*frame))
        except (ChannelClosedError, MessageError):
            self._lose(client)

    def _lose(self, client: int) -> None:
        channel = self._channels.pop(client)
        self._selector.unregister(channel)
        channel.close()
        if client in self._entered:
            self._entered.discard(client)
            assert self._books is not None
            self._tallies.leave(client)
            self._send(self._books.leave(client))

    def _do(self, client: int, message: object) -> None:
        if isinstance(message, Enter):
            self._enter(client, message)
            return
        books = self._books
        if client not in self._entered or books is None:
            raise MessageError("a client asks before it has entered")
        match message:
            case Ask() if message.how == WAITING:
                self._send(books.wait(client, message))
            case Ask() if message.how == GOING_ON:
                books.goes_on(client, message)
            case Ask():
                self._answer(client, books.ask(client, message))
            case Room():
                placed = self._room(books, client, message)
                if books.is_short and self._directory is not None:
                    self._directory.end()  # before any place is another sample's
                    self._directory = None
                self._give_back()  # before anything is written there
                self._answer(client, placed)
            case Keep():
                self._send(books.keep(client, message))
                self._note_written(books)
                self._note_settled(books)
            case Done():
                books.done(client, message.serial)
            case Course():
                books.follow(message.plan)
            case Trouble():
                self._answer(client, Heard(not self._in_trouble))
                self._stop_writing(message.why)
            case Tell():
                unasked = self._tallies.of(message.consumer)
                self._answer(client, Told(books.figures(message.consumer, unasked)))
            case _:
                raise MessageError(f"a store does not take {type(message).__name__}")

    def _enter(self, client: int, message: Enter) -> None:
        if self._books is None:
            self._open(message.name)
        assert self._books is not None
        self._books.enter(client, message.consumer)
        self._entered.add(client)
        folder = str(self._index.folder) if self._index is not None else None
        place = self._tallies.enter(client, message.consumer)
        entered = Entered(self._span, folder, place, self._note)
        self._channels[client].send(*pack(entered), (self._region,))

    def _open(self, name: StoreName) -> None:
        holes = _can_punch()
        pages = -(-name.memory // PAGESIZE)
        self._span = max(1, pages) * PAGESIZE * (_SPAN if holes else 1)
        length = self._span + directory_bytes(name.nb_samples)
        self._region = create_region(length, "cache")
        self._mapping = map_shared(self._region, length)
        self._directory = Directory(np.frombuffer(self._mapping, np.uint8)[self._span :])
        self._tallies = Tallies(self._directory.tallies_bytes)
        self._blocks = Blocks.of(self._region, self._span)
        if name.disk is not None:
            self._index = self._open_files(name, name.disk)
        self._books = Books(name.memory, self._span, PAGESIZE, self._index)

    def _open_files(self, name: StoreName, disk: str) -> Index | None:
        try:
            index = Index(folder_of(disk, name.key, name.imprint), name.disk_size)
        except OSError as error:
            self._note = str(error)
            return None
        if not index.may_write:
            self._note = "another store writes here, so this one only reads"
            return index
        about = {
            "dataset": name.dataset_name,
            "samples": name.nb_samples,
            "key": name.key,
            "fingerprint": name.imprint,
        }
        try:
            write_about(index.folder, about)
        except OSError as error:  # the disk is full: what is there is read
            self._note = str(error)
        return index

    def _note_written(self, books: Books) -> None:
        records, books.written = books.written, []
        try:
            if self._index is not None:
                self._index.append(records)
        except OSError as error:
            self._stop_writing(str(error))

    def _note_settled(self, books: Books) -> None:
        settled, books.settled = books.settled, []
        if settled and self._directory is not None:
            self._directory.note(settled)

    def _room(self, books: Books, client: int, message: Room) -> Placed:
        for block in books.blocks_for(message):
            if self._blocks is None or not self._blocks.make(block):
                break
            books.made_whole(block)
        try:
            return books.room(client, message)
        except OSError as error:
            self._stop_writing(str(error))
            return books.room(client, message)

    def _stop_writing(self, why: str) -> None:
        self._in_trouble = True
        self._note = why
        if self._index is not None:
            self._index.stop_writing()

    def _answer(self, client: int, message: object) -> None:
        with suppress(ChannelClosedError):  # what it has left is heard in its turn
            self._channels[client].send(*pack(message))

    def _send(self, replies: list[Reply]) -> None:
        for client, message in replies:
            self._answer(client, message)

    def _give_back(self) -> None:
        if self._books is None or not self._books.freed:
            return
        freed, self._books.freed = self._books.freed, []
        for start, nbytes in freed:
            _punch(self._region, start, nbytes)


def _can_punch() -> bool:
    return sys.platform == "linux"


def _punch(fd: int, start: int, nbytes: int) -> None:
    """Give pages of the region back to the system; they read as zeros then."""
    if _can_punch():
        _libc.fallocate(fd, _PUNCH_HOLE_KEEP_SIZE, start, nbytes)


_libc = ctypes.CDLL(None, use_errno=True)
if sys.platform == "linux":
    _libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
