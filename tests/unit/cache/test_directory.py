"""What lies for good is found without asking, until the store takes that back."""

from __future__ import annotations

from mmap import PAGESIZE

import numpy as np

from swift_loader.cache.books import Books
from swift_loader.cache.directory import Directory, directory_bytes
from swift_loader.cache.messages import IN_MEMORY, USED, Ask, Keep, Room

_PAGE = 256


def _directory(nb_samples: int) -> Directory:
    return Directory(np.zeros(directory_bytes(nb_samples), np.uint8))


def test_rows_are_those_of_an_answer_once_all_the_samples_are_there() -> None:
    directory = _directory(10)
    directory.note([(0, 0, 0, 20), (7, 640, 500, 20), (11, 64, 1, 1)])
    assert directory.rows_of(np.array([7, 3])) is None
    rows = directory.rows_of(np.array([7, 0]))
    assert rows is not None
    want = [[IN_MEMORY, -1, 640, 500, 20, -1], [IN_MEMORY, -1, 0, 0, 20, -1]]
    assert rows.tolist() == want
    for others in ([11], [-1], []):
        assert directory.rows_of(np.array(others, np.int64)) is None
    assert directory.holds
    directory.end()
    assert directory.rows_of(np.array([7])) is None
    assert not directory.holds


def test_a_half_written_row_is_no_row() -> None:
    memory = np.zeros(directory_bytes(4), np.uint8)
    directory = Directory(memory)
    directory.note([(2, 64, 500, 20)])
    row = memory[PAGESIZE:].view(np.int64).reshape(-1, 3)[2]
    for column in range(3):
        whole, row[column] = row[column].copy(), 0
        assert directory.rows_of(np.array([2])) is None
        row[column] = whole
    assert directory.rows_of(np.array([2])) is not None


def test_a_data_set_without_a_length_has_none() -> None:
    for nb_samples in (-2, -1, 0):
        assert _directory(nb_samples).rows_of(np.array([0])) is None


def test_samples_are_settled_once_written_and_only_while_there_is_room_for_all() -> None:
    books = Books(4 * 1024, 16 * 1024, _PAGE)
    books.enter(1, 0)
    for key in range(6):
        books.ask(1, Ask(key + 1, 0, 0, 0, 0, 0, False, np.array([key])))
        row = books.room(1, Room(0, np.array([[0, key, 0, 0, 0, 800, 20, 9]]))).rows[0]
        before = list(books.settled)
        assert key not in [number for number, *_ in before]
        books.keep(1, Keep(0, np.array([[0, key, int(row[0] >= 0), 0, 0]])))
        assert (len(books.settled) > len(before)) == (not books.is_short)
    assert books.is_short
    numbers = [number for number, *_ in books.settled]
    assert numbers == list(range(len(numbers)))
    assert 0 < len(numbers) < 6


def test_samples_that_were_used_without_asking_are_hits() -> None:
    books = Books(1 << 20, 1 << 22, _PAGE)
    books.enter(1, 0)
    books.ask(1, Ask(1, 0, 0, 0, 0, 3, False, np.array([5])))
    books.room(1, Room(0, np.array([[0, 5, 0, 0, 0, 500, 20, 100]])))
    books.keep(1, Keep(0, np.array([[0, 5, 1, 0, 0]])))
    books.used(1, Ask(2, 1, 0, 1, 0, 3, False, np.array([5, 5]), USED))
    figures = books.figures(3)
    assert (figures.hits, figures.misses, figures.hit_bytes) == (2, 1, 1040)
