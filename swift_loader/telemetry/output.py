"""Files that training writes beside its work: they never hold it up, and never end it.

A file of an option may be a pipe that nobody reads, or lie on a disk that is full. Then one warning
says so, nothing more is written, and training goes on.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import warnings

from swift_loader.errors import ConfigError

__all__ = ["Output"]


class Output:
    """The file at `path`, appended to, or begun anew with ``anew=True``. Any thread may write.

    `option` is what the user gave it by, for messages.

    A pipe without a reader is no error: what is written is lost, after a warning. Raises
    `ConfigError` for a file that can't be opened.
    """

    def __init__(self, option: str, path: str, *, anew: bool = False) -> None:
        self._option = option
        self._lock = threading.Lock()
        self._fd = -1
        flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        try:
            self._fd = os.open(path, flags | (os.O_TRUNC if anew else os.O_APPEND), 0o666)
        except OSError as error:
            if error.errno == errno.ENXIO and stat.S_ISFIFO(os.stat(path).st_mode):
                self._warn(f"nobody reads the pipe {path!r}")
                return
            raise ConfigError(
                f"{option}={path!r} can't be written to ({error}). Give a file in a folder that "
                f"exists and may be written to."
            ) from error

    @property
    def open(self) -> bool:
        """Whether what is written arrives."""
        return self._fd >= 0

    def write(self, data: bytes) -> None:
        """Write all of `data`; or warn, once, and nothing from then on."""
        left = memoryview(data)
        with self._lock:
            try:
                while left and self._fd >= 0:
                    left = left[os.write(self._fd, left) :]
                return
            except BlockingIOError:
                why = "its reader does not keep up"
            except OSError as error:
                why = f"because of {error!r}"
            self._close()
        self._warn(why)

    def close(self) -> None:
        """May be called again, and before the last `write`, which then does nothing."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            try:
                os.close(fd)
            except OSError as error:  # some network file systems only tell now
                self._warn(f"because of {error!r}")

    def _warn(self, why: str) -> None:
        warnings.warn(
            f"{self._option}: nothing more is written, {why}", RuntimeWarning, stacklevel=3
        )
