"""Samples in files that outlive the run: one folder for each data set, in the user's `disk` folder.

``<disk>/<uid>-<key>-<fingerprint>/``
    ``about.json``  whose samples these are, for people and for `swift-loader cache`
    ``lock``        held (``flock``) by the store that writes here, while it lives
    ``index``       a record of 64 bytes for each sample, appended once its bytes are written
    ``data-<n>``    segments: the samples' bytes as the codec lays them, each aligned

A sample counts once its record is whole (each record has a checksum of its own), and a record is
written after the sample's bytes. So whatever is killed, nothing half written is ever read. A power
cut may lose bytes and keep a record: a record that was not synced before a reboot is `doubtful`,
and whoever reads such a sample compares its checksum first. All folders have mode 0700 and files
0600; what belongs to another user is refused.

One idea: segments are mapped by the workers, so a sample that the system still has in its page
cache is read without a copy and without a system call. Why no database: see ``docs/cache.md``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import stat
import zlib
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swift_loader.cache.extents import extent_of

__all__ = [
    *("ForeignError", "Index", "Record", "boot_number", "checksum"),
    *("data_path", "folder_of", "open_private", "private_folder", "read_index", "write_about"),
]

SEGMENT_BYTES = 1 << 28
_MAGIC = 0x534C4331  # "SLC1"
_SYNCED = -(2**63)  # the key of a record that says: everything before it is on the medium
_RECORD: Final = np.dtype(
    [
        ("magic", "<u4"),
        ("segment", "<u4"),
        ("offset", "<i8"),
        ("key", "<i8"),
        ("numbers", "<i8"),
        ("skeleton", "<u4"),
        ("check", "<u4"),
        ("cost_us", "<u4"),
        ("zero", "<u4"),
        ("boot", "<u8"),
        ("zero2", "<u4"),
        ("own_check", "<u4"),
    ]
)
assert _RECORD.itemsize == 64


class ForeignError(PermissionError):
    """A folder, a file or a store belongs to another user, or is open to others. Says which."""


class Record(NamedTuple):
    """Where a sample lies, and what it is like. `doubtful`: compare the checksum first."""

    key: int
    segment: int
    offset: int
    numbers: int  # bytes
    skeleton: int  # bytes, behind the numbers
    cost_us: int
    check: int
    doubtful: bool = False


def checksum(*pieces: Any) -> int:
    """Of a sample's bytes. Adler-32: twice as fast as a CRC, and sees what a power cut leaves."""
    found = 1
    for piece in pieces:
        found = zlib.adler32(piece, found)
    return found


def boot_number() -> int:
    """Tells this start of the system from others; 0 where the system can't."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        return 0
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


def folder_of(disk: str, key: str | None, imprint: str) -> Path:
    """The folder of a data set. A key of odd characters is in it by its digest."""
    name = key or "any"
    if not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or len(name) > 64:
        name = blake2b(name.encode(), digest_size=8).hexdigest()
    return Path(disk) / f"{os.geteuid()}-{name}-{imprint[:16]}"


def private_folder(folder: Path) -> None:
    """Make it where it is not there. Raises `ForeignError` unless it is this user's own."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    _check_own(folder, os.lstat(folder), stat.S_ISDIR)


def open_private(path: Path, flags: int) -> int:
    """A descriptor of a file of the user's own, which is made with mode 0600 by ``O_CREAT``."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        _check_own(path, os.fstat(fd), stat.S_ISREG)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_own(path: Path, found: os.stat_result, is_kind: Any) -> None:
    if found.st_uid != os.geteuid() or not is_kind(found.st_mode):
        raise ForeignError(f"{path} belongs to another user, or is no plain file or folder")
    if found.st_mode & 0o077:
        raise ForeignError(f"{path} is open to other users (mode {found.st_mode & 0o777:o})")


def data_path(folder: Path, segment: int) -> Path:
    """The file of a segment."""
    return folder / f"data-{segment}"


def write_about(folder: Path, facts: dict[str, object]) -> None:
    """Whose samples these are."""
    fd = open_private(folder / "about.json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    with open(fd, "w") as file:
        json.dump(facts, file, indent=1)


def read_index(folder: Path) -> tuple[list[Record], int]:
    """The records that are whole, and how many bytes of the index they take.

    What follows the first damaged record doesn't count, nor does a record of bytes that a segment
    doesn't have.
    """
    try:
        fd = open_private(folder / "index", os.O_RDONLY)
    except FileNotFoundError:
        return [], 0
    with open(fd, "rb") as file:
        data = file.read()
    table = np.frombuffer(data, _RECORD, len(data) // _RECORD.itemsize)
    sound = (table["magic"] == _MAGIC) & (_own_checks(table) == table["own_check"])
    whole = len(table) if sound.all() else int(sound.argmin())
    table = table[:whole]
    marks = np.flatnonzero(table["key"] == _SYNCED)
    boot = boot_number()
    doubtful = (table["boot"] != boot) if boot else np.ones(whole, bool)
    if len(marks):
        doubtful[: marks[-1]] = False
    sizes = dict(_sizes(folder))
    there = np.array([sizes.get(segment, 0) for segment in table["segment"].tolist()], np.int64)
    ends = table["offset"] + table["numbers"] + table["skeleton"]
    counts = (table["key"] != _SYNCED) & (ends <= there)
    columns = [table[name][counts].tolist() for name in Record._fields[:-1]]
    kept = list(map(Record, *columns, doubtful[counts].tolist()))
    return kept, whole * _RECORD.itemsize


def _own_checks(table: NDArray[Any]) -> NDArray[np.uint32]:
    """The checksum of each record, over all its words but the last."""
    words = np.ascontiguousarray(table).view("<u4").reshape(-1, _RECORD.itemsize // 4)
    mixed = words[:, :-1] * _MULTIPLIERS
    mixed ^= mixed >> np.uint32(15)
    sums: NDArray[np.uint32] = mixed.sum(axis=1, dtype=np.uint32) ^ np.uint32(_MAGIC)
    return sums


_MULTIPLIERS = np.arange(1, 16, dtype=np.uint32) * np.uint32(0x9E3779B1) | np.uint32(1)


def _sizes(folder: Path) -> Iterator[tuple[int, int]]:
    for path in folder.glob("data-*"):
        number = path.name.removeprefix("data-")
        if number.isdecimal():
            yield int(number), path.stat().st_size


class Index:
    """The store's end of a folder: it appends records, and deals out room in segments.

    `records`: what was there when it was opened. `may_write`: False where another store (of another
    host, say) writes here, or files can't be written any more. Raises `ForeignError` and
    `OSError`.
    """

    def __init__(self, folder: Path, size: int | None) -> None:
        self.folder = folder
        private_folder(folder)
        self._lock = open_private(folder / "lock", os.O_RDWR | os.O_CREAT)
        self.may_write = True
        self._fd = -1
        try:
            self.may_write = _take_lock(self._lock)
            self.records, end = read_index(folder)
            if self.may_write:
                self._fd = open_private(folder / "index", os.O_RDWR | os.O_CREAT | os.O_APPEND)
                os.ftruncate(self._fd, end)
        except BaseException:
            self.close(sync=False)
            raise
        self._boot = boot_number()
        self._segment = max((segment for segment, _ in _sizes(folder)), default=-1)
        self._left = 0  # of this segment; what a run before left of its last one is not used
        self._end = 0
        self.size = size
        self.used = sum(extent_of(each.numbers + each.skeleton) for each in self.records)
        self._dirty: set[int] = set()

    def place(self, nbytes: int) -> tuple[int, int] | None:
        """Segment and offset for so many bytes; None where they don't fit `size`.

        Raises `OSError` where no segment can be made.
        """
        nbytes = extent_of(nbytes)
        if not self.may_write or (self.size is not None and self.used + nbytes > self.size):
            return None
        if nbytes > self._left:
            segment = self._segment + 1
            length = max(SEGMENT_BYTES, nbytes)
            fd = open_private(data_path(self.folder, segment), os.O_RDWR | os.O_CREAT | os.O_EXCL)
            try:
                os.ftruncate(fd, length)  # what is not written takes no room
            finally:
                os.close(fd)
            self._segment, self._left, self._end = segment, length, 0
        place = self._segment, self._end
        self._end += nbytes
        self._left -= nbytes
        self.used += nbytes
        return place

    def append(self, records: list[Record]) -> None:
        """These samples' bytes are written. Raises `OSError`; the index is whole then, too."""
        if not records or not self.may_write:
            return
        self._dirty.update(record.segment for record in records)
        self._write(self._table(records))

    def _table(self, records: list[Record]) -> NDArray[Any]:
        table = np.zeros(len(records), _RECORD)
        table["magic"], table["boot"] = _MAGIC, self._boot
        for name, column in zip(Record._fields[:-1], zip(*records, strict=True), strict=False):
            table[name] = column
        table["own_check"] = _own_checks(table)
        return table

    def _write(self, table: NDArray[Any]) -> None:
        data = table.tobytes()
        end = os.fstat(self._fd).st_size
        try:
            written = os.write(self._fd, data)
        except OSError:
            os.ftruncate(self._fd, end)
            raise
        if written < len(data):
            os.ftruncate(self._fd, end)
            raise OSError(28, os.strerror(28))

    def stop_writing(self) -> None:
        """From now on nothing is written here any more."""
        self.may_write = False

    def close(self, *, sync: bool = True) -> None:
        """Have everything on the medium, say so in the index, and let the folder go."""
        if self._fd >= 0:
            if sync and self._dirty:
                with contextlib.suppress(OSError):  # they stay doubtful
                    self._sync()
            os.close(self._fd)
            self._fd = -1
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _sync(self) -> None:
        for segment in sorted(self._dirty):
            fd = open_private(data_path(self.folder, segment), os.O_RDWR)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        os.fsync(self._fd)
        self._write(self._table([Record(_SYNCED, 0, 0, 0, 0, 0, 0)]))
        os.fsync(self._fd)


def _take_lock(fd: int) -> bool:
    """Take it, waiting a moment for a store that is just ending. In the main thread."""
    before = signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, _LOCK_WAIT_S)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
    except TimeoutError:
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return True


def _give_up(number: int, frame: object) -> None:
    raise TimeoutError


_LOCK_WAIT_S = 1.0
