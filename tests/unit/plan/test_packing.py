"""Which pieces make a sequence: all tokens once, whatever the lengths."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from swift_loader.plan.packing import Lengths, Packing, SplitPacking
from swift_loader.plan.packing_fit import BestFitPacking, fit

documents = st.lists(st.one_of(st.just(0), st.integers(0, 40), st.integers(0, 300)), max_size=60)


def tokens_of(packing: Packing, order: int | None = None) -> list[list[tuple[int, int]]]:
    """``(document, token)`` of each sequence."""
    found = []
    for sequence in range(packing.nb_sequences):
        pieces = packing.pieces_of([sequence], order).pieces
        assert (pieces.stops > pieces.starts).all()
        found.append(
            [
                (document, token)
                for document, start, stop in zip(
                    pieces.documents.tolist(),
                    pieces.starts.tolist(),
                    pieces.stops.tolist(),
                    strict=True,
                )
                for token in range(start, stop)
            ]
        )
    return found


def all_tokens(lengths: list[int], separator: int) -> list[tuple[int, int]]:
    return [
        (document, token)
        for document, length in enumerate(lengths)
        for token in range(length + separator if length else 0)
    ]


@given(documents, st.integers(1, 50), st.integers(0, 2))
@settings(max_examples=150)
def test_split_cuts_the_documents_end_to_end(
    lengths: list[int], length: int, separator: int
) -> None:
    packing = SplitPacking(Lengths(np.array(lengths, np.int32), separator), length)
    sequences = tokens_of(packing)
    everything = all_tokens(lengths, separator)
    assert sequences == [everything[at : at + length] for at in range(0, len(everything), length)]


@given(documents, st.integers(1, 50), st.integers(0, 2), st.integers(0, 2**64 - 1))
@settings(max_examples=100)
def test_split_with_shuffled_documents_keeps_each_document_together(
    lengths: list[int], length: int, separator: int, order: int
) -> None:
    packing = SplitPacking(Lengths(np.array(lengths, np.int32), separator), length)
    sequences = tokens_of(packing, order)
    assert all(len(sequence) == length for sequence in sequences[:-1])
    laid = [one for sequence in sequences for one in sequence]
    assert sorted(laid) == all_tokens(lengths, separator)
    firsts = [document for document, token in laid if token == 0]
    assert laid == [
        (document, token) for document in firsts for token in range(lengths[document] + separator)
    ]


@given(documents, st.integers(1, 50), st.integers(0, 2))
@settings(max_examples=150)
def test_best_fit_cuts_only_what_is_too_long(
    lengths: list[int], length: int, separator: int
) -> None:
    packing = BestFitPacking(Lengths(np.array(lengths, np.int32), separator), length)
    sequences = tokens_of(packing)
    assert all(len(sequence) <= length for sequence in sequences)
    assert sorted(one for sequence in sequences for one in sequence) == all_tokens(
        lengths, separator
    )
    for document, size in enumerate(lengths):
        parts = sum(any(one[0] == document for one in sequence) for sequence in sequences)
        assert parts == (-(-(size + separator) // length) if size else 0)


def plain_best_fit(sizes: list[int], room: int) -> list[int]:
    """The rooms that best-fit-decreasing leaves, one piece at a time."""
    left: list[int] = []
    for size in sorted(sizes, reverse=True):
        fitting = [each for each in left if each >= size]
        best = min(fitting, default=room)
        if fitting:
            left.remove(best)
        left.append(best - size)
    return sorted(left)


@given(st.lists(st.integers(1, 30), max_size=80), st.integers(31, 64))
@settings(max_examples=150)
def test_many_at_a_time_fit_as_one_at_a_time(sizes: list[int], room: int) -> None:
    members, ends = fit(np.array(sizes, np.int64), room)
    starts = [0, *ends.tolist()][:-1]
    left = [
        room - sum(sizes[member] for member in members[start:end])
        for start, end in zip(starts, ends.tolist(), strict=True)
    ]
    assert sorted(left) == plain_best_fit(sizes, room)
    assert sorted(members.tolist()) == list(range(len(sizes)))


def texts() -> NDArray[np.int64]:
    """Bytes of each text of the standard library."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    paths += sorted(Path(sysconfig.get_path("stdlib")).glob("[a-z]*/*.py"))
    return np.array([path.stat().st_size for path in paths], np.int64)


@pytest.mark.parametrize("length", [1024, 4096])
def test_best_fit_pads_less_than_one_percent_of_real_texts(length: int) -> None:
    lengths = texts() // 4 + 1  # about as many tokens
    assert len(lengths) > 300
    packing = BestFitPacking(Lengths(lengths), length)
    assert packing.nb_sequences * length <= 1.01 * lengths.sum()


def test_no_sequence_depends_on_how_many_documents_follow_its_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("swift_loader.plan.packing_fit._BLOCK", 1024)
    lengths = np.random.default_rng(1).integers(0, 700, 5000)
    packing = BestFitPacking(Lengths(lengths), 256)
    sequences = tokens_of(packing)
    assert sorted(one for each in sequences for one in each) == all_tokens(lengths.tolist(), 0)
    short = BestFitPacking(Lengths(lengths[:2048]), 256)
    assert tokens_of(short) == sequences[: short.nb_sequences]


@pytest.mark.parametrize("kind", [SplitPacking, BestFitPacking])
def test_a_negative_length_is_named(kind: type[SplitPacking] | type[BestFitPacking]) -> None:
    with pytest.raises(ValueError, match="document 2 has the length -5"):
        kind(Lengths(np.array([3, 0, -5])), 8)


@pytest.mark.parametrize("kind", [SplitPacking, BestFitPacking])
def test_no_documents_make_no_sequences(kind: type[SplitPacking] | type[BestFitPacking]) -> None:
    assert kind(Lengths(np.zeros(0, np.int32)), 8).nb_sequences == 0
    assert kind(Lengths(np.zeros(3, np.int32)), 8).nb_sequences == 0


@given(documents, st.integers(1, 50), st.data())
@settings(max_examples=100)
def test_several_sequences_together_are_those_one_by_one(
    lengths: list[int], length: int, data: st.DataObject
) -> None:
    for kind in (SplitPacking, BestFitPacking):
        packing = kind(Lengths(np.array(lengths, np.int32)), length)
        if not packing.nb_sequences:
            continue
        sequences = data.draw(
            st.lists(st.integers(0, packing.nb_sequences - 1), min_size=1, max_size=9)
        )
        pieces, counts = packing.pieces_of(sequences)
        alone = [packing.pieces_of([sequence]).pieces for sequence in sequences]
        assert counts.tolist() == [len(each.documents) for each in alone]
        for name in ("documents", "starts", "stops"):
            together = getattr(pieces, name).tolist()
            assert together == [value for each in alone for value in getattr(each, name).tolist()]
