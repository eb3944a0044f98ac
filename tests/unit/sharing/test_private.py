"""Copy-on-write memory: what is written is private, and gone with the batch."""

from __future__ import annotations

import os

import numpy as np
import pytest

from swift_loader.sharing.private import PageTable, PrivateRegion
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
        region.forget_writes(NBYTES - 100, pages)
    pages.close()


def test_pages_that_were_only_read_are_known_as_such() -> None:
    fd = create_region(NBYTES, "test")
    region, pages = PrivateRegion(fd, NBYTES), PageTable()
    view = region.view(NBYTES)
    address = view.ctypes.data
    assert not pages.may_be_written(address, NBYTES)
    assert int(view.sum()) == 0
    assert not pages.may_be_written(address, NBYTES)
    view[-1] = 1
    assert pages.may_be_written(address, NBYTES)
    assert not pages.may_be_written(address, NBYTES - 4096)
    region.forget_writes(NBYTES, pages)
    assert not pages.may_be_written(address, NBYTES)
    pages.close()
