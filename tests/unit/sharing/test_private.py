"""Copy-on-write memory: what is written is private, and gone with the batch."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

from swift_loader.sharing.private import PageTable, PrivateRegion, has_private_copies
from swift_loader.transport.memory import create_region, map_shared

NBYTES = 64 * 4096


@pytest.mark.parametrize("seen", [True, False], ids=["page table", "none"])
def test_what_was_written_into_a_view_does_not_show_in_the_next(seen: bool) -> None:
    fd = create_region(NBYTES, "test")
    shared = np.frombuffer(map_shared(fd, NBYTES), np.uint8)
    region, pages = PrivateRegion(os.dup(fd), NBYTES), PageTable()
    os.close(fd)
    if not seen:
        pages.close()
    for value in range(1, 6):
        shared[:] = value
        view = region.view(NBYTES - 100)
        assert int(view.min()) == int(view.max()) == value
        if value % 2:
            view[5000:5100] = 99
            assert int(shared.max()) == value
        region.forget_writes(NBYTES - 100, pages, pages.nb_faults())
    pages.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows its page table")
def test_pages_that_were_only_read_are_known_as_such() -> None:
    fd = create_region(NBYTES, "test")
    region, pages = PrivateRegion(fd, NBYTES), PageTable()
    view = region.view(NBYTES)

    def written(nbytes: int = NBYTES) -> bool:
        entries = pages.read(view.ctypes.data, nbytes)
        assert entries is not None
        return has_private_copies(entries)

    assert not written()
    assert int(view.sum()) == 0
    assert not written()
    view[-1] = 1
    assert written()
    assert not written(NBYTES - 4096)
    region.forget_writes(NBYTES, pages, pages.nb_faults())
    assert not written()
    pages.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows its page table")
def test_pages_are_looked_at_again_only_after_a_page_fault() -> None:
    fd = create_region(NBYTES, "test")
    region, pages = PrivateRegion(fd, NBYTES), PageTable()
    view = region.view(NBYTES)
    clean_at = pages.nb_faults()
    assert clean_at is not None
    region.forget_writes(NBYTES, pages, clean_at)
    view[0] = 1
    assert pages.nb_faults() != clean_at
    region.forget_writes(NBYTES, pages, clean_at)
    assert view[0] == 1  # nobody looked, as no fault was told of
    region.forget_writes(NBYTES, pages, pages.nb_faults())
    assert view[0] == 0
    pages.close()
