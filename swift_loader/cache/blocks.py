"""Memory of a store in whole blocks: large pages of the processor, where the system has them.

Page by page, memory that is fresh costs more than what is written into it: each page is found,
counted and entered into the region's books. A block is 512 pages in one, and those who map it find
it at once. A system is seldom set to give shared memory so. But it does on demand, since Linux 6.1.
"""

from __future__ import annotations

import ctypes
import sys
import time

from swift_loader.cache.extents import BLOCK_BYTES
from swift_loader.transport.memory import Mapping, map_aligned

__all__ = ["Blocks"]

_MADV_COLLAPSE = 25  # of <linux/mman.h>
_SLOW_S = 0.001
"""Of the processor's time: about what its pages would take one by one. A block may take that where
the system moves other memory away for it, or where a host has to give the memory to this machine.
"""
_MOST_SLOW = 1


class Blocks:
    """Makes blocks of a region."""

    def __init__(self, mapping: Mapping, start: int) -> None:
        self._slow = 0
        self._mapping = memoryview(mapping)[start:]
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))

    @classmethod
    def of(cls, region: int, nbytes: int) -> Blocks | None:
        """Those of a region of `nbytes`; None where there can't be any."""
        if sys.platform != "linux" or nbytes < BLOCK_BYTES:
            return None
        try:
            return cls(*map_aligned(region, nbytes, BLOCK_BYTES))
        except OSError:  # it may not have so much address space
            return None

    def make(self, block: int) -> bool:
        """Have the block that begins at `block` there; False where that can't be or doesn't pay."""
        if self._slow >= _MOST_SLOW:
            return False
        began_s = time.thread_time()
        self._mapping[block]  # of a block that is wholly empty nothing is made
        made: bool = _libc.madvise(self._address + block, BLOCK_BYTES, _MADV_COLLAPSE) == 0
        self._slow += 0 if made else _MOST_SLOW
        self._slow += time.thread_time() - began_s > _SLOW_S
        return made


_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
