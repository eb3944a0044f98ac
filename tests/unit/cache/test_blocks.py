"""Memory in whole blocks reads as any other, and is given back page by page."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from swift_loader.cache.blocks import Blocks
from swift_loader.cache.books import Books
from swift_loader.cache.extents import BLOCK_BYTES
from swift_loader.cache.messages import Ask, Keep, Room
from swift_loader.cache.process import _punch
from swift_loader.transport.memory import create_region, map_aligned

_PAGE = 4096


@pytest.fixture
def region() -> Iterator[int]:
    fd = create_region(4 * BLOCK_BYTES, "test")
    yield fd
    os.close(fd)


def _resident(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


def test_pages_of_a_block_are_given_back_and_the_others_stay(region: int) -> None:
    blocks = Blocks.of(region, 4 * BLOCK_BYTES)
    if blocks is None or not blocks.make(BLOCK_BYTES):
        pytest.skip("this system makes no blocks")
    assert _resident(region) == BLOCK_BYTES
    mapping, start = map_aligned(region, 4 * BLOCK_BYTES, BLOCK_BYTES)
    memory = np.frombuffer(mapping, np.uint8, 4 * BLOCK_BYTES, start)
    assert memory.ctypes.data % BLOCK_BYTES == 0
    own = memory[BLOCK_BYTES : 2 * BLOCK_BYTES]
    assert not own.any()
    own[:] = 7
    _punch(region, BLOCK_BYTES + 3 * _PAGE, 10 * _PAGE)
    assert _resident(region) == BLOCK_BYTES - 10 * _PAGE
    assert not own[3 * _PAGE : 13 * _PAGE].any()
    assert (own[: 3 * _PAGE] == 7).all()
    assert (own[13 * _PAGE :] == 7).all()


def test_blocks_stay_within_the_bound_and_what_is_unused_goes_when_room_is_scarce() -> None:
    memory = 3 * BLOCK_BYTES + 100_000
    books = Books(memory, 4 * memory // _PAGE * _PAGE, _PAGE)
    books.enter(1, 0)
    blocks: list[int] = []
    freed = 0
    for key in range(60):
        books.ask(1, Ask(key + 1, 0, 0, 0, 0, 0, False, np.array([key])))
        room = Room(0, np.array([[0, key, 0, 0, 0, 150_000, 20, 100]]))
        for block in books.blocks_for(room):
            books.made_whole(block)
            blocks.append(block)
        [offset, _, _, is_there] = books.room(1, room).rows[0].tolist()
        books.keep(1, Keep(0, np.array([[0, key, int(offset >= 0), 0, 0]])))
        assert bool(is_there) == (0 <= offset < len(blocks) * BLOCK_BYTES)
        assert books.figures(0).memory_used <= memory
        freed += sum(each.nbytes for each in books.freed)
        books.freed.clear()
    assert blocks == [0, BLOCK_BYTES, 2 * BLOCK_BYTES]
    figures = books.figures(0)
    assert figures.kept == (memory - 256 * figures.kept) // 150_080
    assert freed < BLOCK_BYTES
