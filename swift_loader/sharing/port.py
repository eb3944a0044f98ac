"""Where a producer is found: a Unix socket in a directory that only its user can enter.

``<directory>/<name>.sock``   the producer listens here
``<directory>/<name>.lock``   held (``flock``) by the producer that owns the name, while it lives
``<directory>/<name>.wait-*`` datagram sockets of consumers that wait for a producer to come up

The lock makes a name's owner unique and its socket safe to replace: the kernel frees it however
the owner ends. A waiting consumer blocks on its own socket, and the producer that comes up writes
to all of them, so nobody polls.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import re
import secrets
import select
import socket
import stat
import tempfile
import time
import warnings
import weakref
from pathlib import Path

from swift_loader.errors import ConfigError, ProducerGoneError, SharingError
from swift_loader.transport.channel import Channel
from swift_loader.transport.peer import peer_of, same_user

__all__ = ["Port", "PortOwner"]

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_BACKLOG = 128
_MAX_PATH_BYTES = 100  # of 104 (macOS) or 108 (Linux) that a socket's address has
_MOST_SWEEPS = 100
_SEND_BYTES = 1 << 20
_LONGEST_BYTES = 1 << 20  # of what a consumer says


class Port:
    """The place of one producer.

    `port` is a number or a name (letters, digits, ``._-``). The directory is ``swift_loader`` in
    ``$XDG_RUNTIME_DIR``, or else ``swift_loader-<uid>`` in the system's directory for temporary
    files, also where the former can't be written to, after a warning. It is made with mode 0700.

    Raises `ConfigError` for a bad name, `SharingError` where the directory is open to others.
    """

    def __init__(self, port: int | str) -> None:
        self.name = str(port)
        if isinstance(port, bool) or not _NAME.match(self.name) or self.name.startswith("."):
            raise ConfigError(
                f"port={port!r} is no address: give a number, or a name of letters, digits and ._-"
            )
        self.directory = _private_directory()
        self.path = str(self.directory / f"{self.name}.sock")
        self.lock_path = str(self.directory / f"{self.name}.lock")
        if len(self.path.encode()) + 32 > _MAX_PATH_BYTES:
            raise ConfigError(
                f"the socket's path {self.path!r} is too long: give a shorter port name, "
                "or set XDG_RUNTIME_DIR to a shorter directory"
            )

    def __str__(self) -> str:
        return f"port {self.name} ({self.path})"

    def connect(self, wait_s: float) -> Channel:
        """A channel to the producer, which is waited for at most `wait_s` seconds.

        Raises `ProducerGoneError` when there is none by then, `SharingError` when who listens is
        another user.
        """
        channel = self._try_connect()
        if channel is None and wait_s > 0:
            channel = self._connect_later(time.monotonic() + wait_s)
        if channel is None:
            waited = f" within {wait_s:g} s" if wait_s > 0 else ""
            raise ProducerGoneError(
                f"no producer came up at {self}{waited}: start it, or look at its log. If it had "
                "ended already, its wait_for= makes it wait for so many consumers. "
                "Both sides must have the same port, user and XDG_RUNTIME_DIR"
            )
        return channel

    def _try_connect(self) -> Channel | None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(True)  # or a full backlog would be an error, with a default timeout
        try:
            sock.connect(self.path)
        except (FileNotFoundError, ConnectionRefusedError):
            sock.close()
            return None
        if not same_user(sock):
            sock.close()
            raise SharingError(f"who listens at {self} is another user; nothing was read from it")
        return Channel(sock)

    def _connect_later(self, deadline_s: float) -> Channel | None:
        path = str(self.directory / f"{self.name}.wait-{secrets.token_hex(6)}")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
            bell.setblocking(True)
            bell.bind(path)
            try:
                poll = select.poll()
                poll.register(bell, select.POLLIN)
                while True:
                    channel = self._try_connect()
                    left_s = deadline_s - time.monotonic()
                    if channel is not None or left_s <= 0:
                        return channel
                    if poll.poll(min(left_s, 1e6) * 1000):
                        bell.recv(16)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)


class PortOwner:
    """The producer's end of an address. Closed in every process that the producer forks.

    Raises `SharingError` when another producer has the name.
    """

    def __init__(self, port: Port) -> None:
        self.port = port
        self._pid = os.getpid()
        _sweep(port.directory)
        self._lock_fd = _claim(port)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(port.path)  # of a producer that is dead: the lock is ours
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._sock.bind(port.path)
            self._sock.listen(_BACKLOG)
            self._sock.setblocking(False)
        except OSError:
            self._sock.close()
            os.close(self._lock_fd)
            raise
        self._inode = os.stat(port.path).st_ino
        self._spare_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        _listeners.add(self)
        self._ring()

    def fileno(self) -> int:
        return self._sock.fileno()

    def accept(self) -> tuple[Channel, int] | None:
        """A new consumer's channel and process id; None when there is none, or it is no friend."""
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return None
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._refuse_one()
            return None
        if not same_user(sock):
            sock.close()
            return None
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
        return Channel(sock, _LONGEST_BYTES), peer_of(sock)[0]

    def _refuse_one(self) -> None:
        """No descriptor is left: hang up on whoever knocks, or `poll` would tell of it for ever."""
        os.close(self._spare_fd)
        with contextlib.suppress(OSError):
            self._sock.accept()[0].close()
        self._spare_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _ring(self) -> None:
        """Wake the consumers that wait for this address."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            for path in self.port.directory.glob(f"{self.port.name}.wait-*"):
                try:
                    sock.sendto(b"up", str(path))
                except ConnectionRefusedError:  # whoever waited there was killed
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path)
                except (FileNotFoundError, BlockingIOError):
                    continue

    def close(self) -> None:
        """Give up the name. May be called again."""
        if self._lock_fd < 0:
            return
        self._sock.close()
        os.close(self._spare_fd)
        if self._pid == os.getpid():
            with contextlib.suppress(FileNotFoundError):
                if os.stat(self.port.path).st_ino == self._inode:
                    os.unlink(self.port.path)
        if self._pid == os.getpid():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.port.lock_path)
        os.close(self._lock_fd)
        self._lock_fd = -1


def _private_directory() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    uid = os.geteuid()
    path = Path(tempfile.gettempdir()) / f"swift_loader-{uid}"
    if runtime:
        wanted = Path(runtime) / "swift_loader"
        if _made(wanted):
            path = wanted
        else:
            warnings.warn(
                f"XDG_RUNTIME_DIR={runtime!r} is missing or can't be written to: {path} takes its "
                "place, for producers and consumers with the same XDG_RUNTIME_DIR",
                RuntimeWarning,
                stacklevel=4,
            )
    if not _made(path):
        raise SharingError(
            f"{path} can't be made or written to: set XDG_RUNTIME_DIR to a directory of your own"
        )
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
        raise SharingError(
            f"{path} must be a directory of your own with mode 0700, for others could put their "
            "socket there; remove it, or set XDG_RUNTIME_DIR to a private directory"
        )
    return path


def _made(path: Path) -> bool:
    """Whether the directory is there, and can be written to."""
    with contextlib.suppress(OSError):
        os.mkdir(path, mode=0o700)
    return os.access(path, os.W_OK | os.X_OK)


def _sweep(directory: Path) -> None:
    """Remove the locks of producers that were killed: nobody holds them any more."""
    for path in directory.glob("*.lock"):
        with contextlib.suppress(OSError):  # it is held, or another producer has removed it
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.stat(path).st_ino == os.fstat(fd).st_ino:
                    path.with_suffix(".sock").unlink(missing_ok=True)
                    os.unlink(path)
            finally:
                os.close(fd)


def _claim(port: Port) -> int:
    """A descriptor whose lock is the ownership of the name."""
    for attempt in itertools.count():
        fd = os.open(port.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(fd, 32).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            if attempt < _MOST_SWEEPS and not _lives(owner):
                continue  # another producer looks whether anybody holds it
            raise SharingError(
                f"another producer (process {owner}) serves {port}: give another port, or end it"
            ) from None
        with contextlib.suppress(FileNotFoundError):
            if os.stat(port.lock_path).st_ino == os.fstat(fd).st_ino:
                break
        os.close(fd)  # of an owner that has just removed it
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())
    return fd


def _lives(owner: str) -> bool:
    """Whether there is this process."""
    try:
        os.kill(int(owner), 0)
    except (ValueError, OverflowError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


_listeners: weakref.WeakSet[PortOwner] = weakref.WeakSet()


def _close_in_forked_child() -> None:
    for listener in list(_listeners):
        listener.close()


os.register_at_fork(after_in_child=_close_in_forked_child)
