"""The bump allocator: where pieces lie, what does not fit, and who keeps the buffer."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swift_loader.batch.arena import ALIGNMENT_BYTES, Arena

DTYPES = [torch.bool, torch.uint8, torch.uint16, torch.float32, torch.bfloat16, torch.complex128]


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 5), max_size=3), st.sampled_from(DTYPES)), max_size=10
    )
)
def test_pieces_are_aligned_apart_and_as_asked(
    wanted: list[tuple[list[int], torch.dtype]],
) -> None:
    arena = Arena(memoryview(bytearray(1 << 20)))
    pieces = []
    for number, (shape, dtype) in enumerate(wanted):
        piece = arena.empty(shape, dtype)
        assert piece is not None
        assert (tuple(piece.shape), piece.dtype) == (tuple(shape), dtype)
        piece.view(torch.uint8).fill_(number) if piece.dim() else piece.fill_(number)
        offset = arena.offset_of(piece.data_ptr(), piece.nbytes)
        if piece.numel():
            assert offset is not None
            assert offset % ALIGNMENT_BYTES == 0
        pieces.append((piece.clone(), piece))
    for before, after in pieces:  # none was written over
        assert torch.equal(before, after)
    assert arena.used_bytes == arena.wanted_bytes


def test_what_does_not_fit_is_counted_and_later_pieces_may_fit() -> None:
    arena = Arena(memoryview(bytearray(256)))
    assert arena.empty((100,), torch.float32) is None
    assert arena.empty((64,), torch.uint8) is not None
    assert arena.used_bytes == 64
    assert arena.wanted_bytes == 448 + 64
    assert Arena(memoryview(bytearray(arena.wanted_bytes))).empty((100,), torch.float32) is not None


@pytest.mark.parametrize("buffer", [None, memoryview(bytearray())])
def test_arena_of_nothing_holds_empty_tensors_only(buffer: memoryview | None) -> None:
    arena = Arena(buffer)
    assert arena.empty((1,), torch.uint8) is None
    empty = arena.empty((0, 3), torch.float32)
    assert empty is not None
    assert empty.shape == (0, 3)


def test_reset_hands_out_the_same_memory_again() -> None:
    arena = Arena(memoryview(bytearray(64)))
    first = arena.empty((8,), torch.int64)
    assert first is not None
    assert arena.empty((1,), torch.int64) is None
    arena.reset()
    again = arena.empty((8,), torch.int64)
    assert again is not None
    assert again.data_ptr() == first.data_ptr()
    assert arena.wanted_bytes == 64


def test_pieces_are_seen_through_the_buffer_and_outlive_the_arena() -> None:
    region = mmap.mmap(-1, 4096)
    arena = Arena(region)
    piece = arena.empty((4,), torch.int32)
    assert piece is not None
    del arena
    piece.copy_(torch.arange(4))
    assert np.frombuffer(region, np.int32, 4).tolist() == [0, 1, 2, 3]


def test_memory_of_others_lies_outside() -> None:
    arena = Arena(memoryview(bytearray(4096)))
    piece = arena.empty((16,), torch.uint8)
    assert piece is not None
    assert arena.offset_of(piece.data_ptr(), 16) == 0
    assert arena.offset_of(piece.data_ptr() + 4, 8) == 4
    assert arena.offset_of(piece.data_ptr(), 1000) is None  # beyond what was handed out
    assert arena.offset_of(torch.zeros(4).data_ptr(), 16) is None


def test_read_only_buffer_is_refused() -> None:
    with pytest.raises(ValueError, match="writable"):
        Arena(memoryview(b"constant"))
