"""Finding the store of a name, or starting it.

Whoever finds nobody at the address binds it, and hands the listening socket to a new process. Only
one can bind it, and from that moment on others can connect: they wait in the socket's queue until
the new process takes them. So two that come at the same time find one store, and nobody polls.

On Linux the address is abstract: a name without a file, gone with the socket. Elsewhere it is a
socket in a directory that only its user can enter.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from swift_loader.cache.files import ForeignError, private_folder
from swift_loader.transport.channel import Channel
from swift_loader.transport.peer import same_user

__all__ = ["connect_or_start"]

_BACKLOG = 1024
_TRIES = 3
# The store belongs to nobody: its parent ends at once, and it has a session of its own. Nothing but
# `os` and `sys` is imported before the search path is this process's. numpy takes twice as long to
# import where it starts threads for products of matrices.
_BOOT = (
    "import os, sys; os.fork() and os._exit(0); os.setsid(); os.chdir('/'); "
    "os.environ['OPENBLAS_NUM_THREADS'] = '1'; "
    "sys.path[:] = eval(sys.argv.pop(1)); "
    "from swift_loader.cache.process import main; main(int(sys.argv.pop(1)))"
)


def connect_or_start(address: str) -> Channel:
    """A channel to the store at `address`, which is started where there is none.

    Raises `ForeignError`, and `OSError` where no process can be started.
    """
    for _ in range(_TRIES):
        channel = _connect(address)
        if channel is not None:
            return channel
        listener = _bind(address)
        if listener is None:
            continue  # somebody else was faster: connect
        with listener:
            # Before the process is started, so that it finds somebody there.
            channel = _connect(address)
            try:
                _start(listener)
            except BaseException:
                if channel is not None:
                    channel.close()
                raise
        if channel is not None:
            return channel
    raise OSError(errno.ECONNREFUSED, f"nobody answers at {address}, and nobody can be started")


if sys.platform == "linux":

    def _place(address: str) -> str:
        return f"\0{address}"

else:

    def _place(address: str) -> str:
        folder = Path(tempfile.gettempdir()) / f"swift_loader-{os.geteuid()}"
        private_folder(folder)
        return str(folder / f"{address.rpartition('-')[2]}.cache")


def _connect(address: str) -> Channel | None:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(True)  # or a full backlog would be an error, with a default timeout
    try:
        sock.connect(_place(address))
    except (ConnectionRefusedError, FileNotFoundError):
        sock.close()
        return None
    except BaseException:
        sock.close()
        raise
    if not same_user(sock):
        sock.close()
        raise ForeignError(f"who listens at {address} is another user")
    return Channel(sock)


def _bind(address: str) -> socket.socket | None:
    place = _place(address)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if not place.startswith("\0"):
            with suppress(FileNotFoundError):
                os.unlink(place)  # of a store that is gone: nobody has answered
        listener.bind(place)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return listener


def _start(listener: socket.socket) -> None:
    # Above the standard streams, one of which may be closed here and open there.
    fd = fcntl.fcntl(listener.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
    try:
        own = str(Path(__file__).resolve().parents[2])
        path = [folder for folder in sys.path if isinstance(folder, str) and folder]
        subprocess.run(
            [sys.executable, "-c", _BOOT, ascii([*path, own]), str(fd)],
            pass_fds=(fd,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        raise OSError(errno.ECHILD, f"no process could be started: {error}") from error
    finally:
        os.close(fd)
