"""A consumer's view of the producer's memory: copy-on-write, so that what it writes stays its own.

A region is mapped once (``MAP_PRIVATE``) and used for every batch that comes to lie in it: pages
that were only read stay mapped, and reading them again costs nothing. A page that the consumer
wrote to has become a private copy, which would hide the next batch. The first write to a page is a
page fault. So when a batch's lease ends, and this process has had a fault since the region was last
known to be clean, the kernel's own table (``/proc/self/pagemap``) is asked whether there are such
pages, and only then they are dropped (``MADV_DONTNEED``), which shows the shared ones again. Where
there is no such table, they are always dropped.
"""

from __future__ import annotations

import mmap
import os
import resource
import sys

import numpy as np
from numpy.typing import NDArray

from swift_loader.transport.memory import map_private

__all__ = ["PageTable", "PrivateRegion", "has_private_copies"]

_ENTRY_BYTES = 8
_KIND_SHIFT = np.uint64(61)  # bits 63 and 62: present, swapped out; bit 61: a page of the file
_OF_FILE = np.uint64(1)


class PageTable:
    """The kernel's table of this process's pages."""

    def __init__(self) -> None:
        self._fd = -1
        if sys.platform == "linux" and sys.byteorder == "little":
            try:
                self._fd = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:  # a sandbox without it
                self._fd = -1
        self._counts_faults = _faults_are_counted()

    def nb_faults(self) -> int | None:
        """Page faults of this process so far, in all of its threads.

        None where nobody counts them, and without the table: there, nothing is sure.
        """
        return _nb_faults() if self._counts_faults and self._fd >= 0 else None

    def read(self, address: int, nbytes: int) -> bytes | None:
        """The entries of the pages in a range; None where they can't be had."""
        if self._fd < 0:
            return None
        count = -(-nbytes // mmap.PAGESIZE)
        entries = os.pread(self._fd, count * _ENTRY_BYTES, address // mmap.PAGESIZE * _ENTRY_BYTES)
        return entries if len(entries) == count * _ENTRY_BYTES else None

    def close(self) -> None:
        """May be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def has_private_copies(entries: bytes) -> bool:
    """Whether a page of a file's mapping has become a copy of this process's own."""
    kinds = np.frombuffer(entries, np.uint64) >> _KIND_SHIFT
    return bool(np.count_nonzero(kinds) != np.count_nonzero(kinds & _OF_FILE))


def _nb_faults() -> int:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt


def _faults_are_counted() -> bool:
    """Whether a first write shows in the count: not every sandbox's kernel keeps it."""
    before = _nb_faults()
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        page[0] = 1
    return _nb_faults() > before


class PrivateRegion:
    """One region of the producer's, mapped copy-on-write. Takes the descriptor."""

    def __init__(self, fd: int, nbytes: int) -> None:
        self._fd = fd
        self._nbytes = nbytes
        self._clean = b""  # entries that were looked at closely; usually the next are the same
        self._clean_at: int | None = None  # the count of faults before it was last seen to be clean
        try:
            self._map()
        except BaseException:
            os.close(fd)
            raise
        if sys.platform == "linux":
            self.close()  # the mapping is all that is needed

    def _map(self) -> None:
        self._mapping = map_private(self._fd, self._nbytes)
        self._address: int = np.frombuffer(self._mapping, np.uint8).ctypes.data

    def view(self, used_bytes: int) -> NDArray[np.uint8]:
        """The used bytes as a fresh array."""
        return np.frombuffer(self._mapping, np.uint8, used_bytes)

    def forget_writes(self, used_bytes: int, pages: PageTable, nb_faults: int | None) -> None:
        """Show the producer's bytes again, whatever the consumer wrote into the last view.

        `nb_faults` is what `pages` counted after that view was gone.
        """
        if nb_faults is not None and nb_faults == self._clean_at:
            return
        self._clean_at = nb_faults
        entries = pages.read(self._address, used_bytes)
        if entries is not None:
            if entries == self._clean:
                return
            if not has_private_copies(entries):
                self._clean = entries
                return
        if sys.platform == "linux":
            self._mapping.madvise(mmap.MADV_DONTNEED)
        else:
            self._map()

    def close(self) -> None:
        """Close the descriptor; views stay valid. May be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
