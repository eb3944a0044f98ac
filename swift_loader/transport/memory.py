"""Anonymous shared memory: a region that has a descriptor and no name.

Nothing appears in ``/dev/shm``, so its size does not bound a region, two runs can't collide, and
nothing is left behind whatever is killed: the kernel frees the pages with the last mapping.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import secrets
import sys
from collections.abc import Callable

from swift_loader.errors import NoRoomError

__all__ = [
    "Mapping",
    "create_region",
    "filled_region",
    "map_aligned",
    "map_private",
    "map_shared",
    "round_up",
    "seal",
]

_PAGE_BYTES = mmap.PAGESIZE
_F_SEAL_FUTURE_WRITE = 0x10  # of <linux/fcntl.h>; not in the standard library


def round_up(nbytes: int) -> int:
    """The smallest whole number of pages (at least one) that holds `nbytes`."""
    return max(1, -(-nbytes // _PAGE_BYTES)) * _PAGE_BYTES


def create_region(nbytes: int, label: str) -> int:
    """A descriptor of a new zero-filled region of `nbytes`; `label` shows in ``/proc/*/maps``.

    Raises `OSError` when the system has no memory or no descriptor left, `NoRoomError` where a file
    may not be so long (`ulimit -f`).
    """
    fd = _anonymous_fd(label)
    try:
        os.ftruncate(fd, nbytes)
    except OSError as error:
        os.close(fd)
        if error.errno != errno.EFBIG:
            raise
        raise NoRoomError(
            f"{nbytes:,} bytes of shared memory ({label}) are more than this process's limit of a "
            "file's size: raise it (`ulimit -f`)"
        ) from None
    return fd


def filled_region(nbytes: int, label: str, write: Callable[[memoryview], object]) -> int:
    """A descriptor of a new region into which `write` has put `nbytes`."""
    fd = create_region(nbytes, label)
    with map_shared(fd, nbytes) as region:
        view = memoryview(region)
        write(view)
        view.release()
    return fd


class Mapping(mmap.mmap):
    """Mapped memory. `before_unmap` is called when nothing uses it any more, before it goes."""

    before_unmap: Callable[[], object] | None = None

    def __del__(self) -> None:
        if self.before_unmap is not None:
            self.before_unmap()


def map_shared(fd: int, nbytes: int, *, populate: bool = False) -> Mapping:
    """A writable mapping that all processes see; `populate` pays for the page faults at once."""
    flags = mmap.MAP_SHARED
    if populate and sys.platform == "linux":
        flags |= mmap.MAP_POPULATE
    return _map(fd, nbytes, flags)


def map_private(fd: int, nbytes: int) -> Mapping:
    """A copy-on-write mapping: shared until this process writes, then its own page."""
    return _map(fd, nbytes, mmap.MAP_PRIVATE)


def _map(fd: int, nbytes: int, flags: int) -> Mapping:
    """The mapping holds no descriptor: a loader may have hundreds, and a process may open few."""
    prot = mmap.PROT_READ | mmap.PROT_WRITE
    if sys.version_info >= (3, 13):
        return Mapping(fd, nbytes, flags=flags, prot=prot, trackfd=False)
    if os.fstat(fd).st_size < nbytes:
        raise ValueError("a mapping can't be longer than its region")
    # Before, `mmap` keeps a copy of the descriptor. So it gets a place, and `fd` is mapped there.
    return _map_at_place(fd, nbytes, flags, 1)[0]


def map_aligned(fd: int, nbytes: int, alignment: int) -> tuple[Mapping, int]:
    """A shared mapping, and where in it `fd` begins: at an address that `alignment` divides.

    So the system can map large pages whole. What lies before and behind is private memory.
    """
    return _map_at_place(fd, nbytes, mmap.MAP_SHARED, alignment)


def _map_at_place(fd: int, nbytes: int, flags: int, alignment: int) -> tuple[Mapping, int]:
    prot = mmap.PROT_READ | mmap.PROT_WRITE
    around = alignment if alignment > _PAGE_BYTES else 0
    place = Mapping(-1, nbytes + around, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=prot)
    address = ctypes.addressof(ctypes.c_char.from_buffer(place))
    start = -address % alignment
    address += start
    if _libc.mmap(address, nbytes, prot, flags | _MAP_FIXED, fd, 0) != address:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return place, start


_MAP_FIXED = 0x10  # on Linux and macOS
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)


if sys.platform == "linux":

    def _anonymous_fd(label: str) -> int:
        return os.memfd_create(f"swift_loader:{label}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)

    def seal(fd: int) -> bool:
        """Let nobody resize a region, nor write to it but through the mappings that there are.

        False where writing can't be forbidden: a kernel before 5.1, or a sandbox's.
        """
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        try:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL)
        except OSError:
            return False
        return True

else:  # macOS has no memfd: a name that lives for one system call

    def seal(fd: int) -> bool:
        """There are no seals."""
        return False

    def _anonymous_fd(label: str) -> int:
        import _posixshmem

        name = f"/sl{secrets.token_hex(8)}"
        fd = _posixshmem.shm_open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode=0o600)
        _posixshmem.shm_unlink(name)
        return fd
