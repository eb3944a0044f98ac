"""What lies for good is found without asking, until the store takes that back."""

from __future__ import annotations

from mmap import PAGESIZE

import numpy as np
import pytest

from swift_loader.cache.books import Books
from swift_loader.cache.directory import Directory, directory_bytes
from swift_loader.cache.messages import GOING_ON, IN_MEMORY, Ask, Keep, Room
from swift_loader.cache.tallies import Tallies, tally_at

_PAGE = 256


def _directory(nb_samples: int) -> Directory:
    return Directory(np.zeros(directory_bytes(nb_samples), np.uint8))


def test_rows_are_those_of_an_answer_once_all_the_samples_are_there() -> None:
    directory = _directory(10)
    directory.note([(0, 0, 0, 20, 5), (7, 640, 500, 20, 0), (11, 64, 1, 1, 7)])
    assert directory.rows_of(np.array([7, 3])) is None
    found = directory.rows_of(np.array([7, 0]))
    assert found is not None
    rows, cost_us = found
    assert cost_us == 5
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
    directory.note([(2, 64, 500, 20, 100)])
    table = memory[PAGESIZE + len(directory.tallies_bytes) :]
    row = table.view(np.int64).reshape(-1, 4)[2]
    for column in range(4):
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
    memory = np.zeros(directory_bytes(0), np.uint8)
    tallies = Tallies(Directory(memory).tallies_bytes)
    books = Books(1 << 20, 1 << 22, _PAGE)
    books.enter(1, 0)
    books.ask(1, Ask(1, 0, 0, 0, 0, 3, False, np.array([5])))
    books.room(1, Room(0, np.array([[0, 5, 0, 0, 0, 500, 20, 100]])))
    books.keep(1, Keep(0, np.array([[0, 5, 1, 0, 0]])))
    tally = tally_at(Directory(memory).tallies_bytes, tallies.enter(1, 3))
    assert tally is not None
    tally.add(2, 1040, 200)
    books.goes_on(1, Ask(2, 1, 0, 1, 0, 3, False, np.array([], np.int64), GOING_ON))
    figures = books.figures(3, tallies.of(3))
    assert (figures.hits, figures.misses, figures.hit_bytes) == (2, 1, 1040)
    assert figures.saved_s == pytest.approx(200e-6)


def test_what_a_client_has_counted_stays_when_it_has_left() -> None:
    memory = Directory(np.zeros(directory_bytes(0), np.uint8)).tallies_bytes
    tallies = Tallies(memory)
    places = [tallies.enter(client, client % 2) for client in range(4)]
    for client, place in enumerate(places):
        tally = tally_at(memory, place)
        assert tally is not None
        tally.add(1, 10**client, 5)
    assert (tallies.of(0), tallies.of(1)) == ((2, 101, 10), (2, 1010, 10))
    tallies.leave(2)
    tallies.leave(2)
    again = tally_at(memory, tallies.enter(7, 1))  # of the other consumer
    assert again is not None
    again.add(1, 5, 0)
    assert (tallies.of(0), tallies.of(1)) == ((2, 101, 10), (3, 1015, 10))


def test_a_client_that_finds_no_row_asks_the_store() -> None:
    memory = Directory(np.zeros(directory_bytes(0), np.uint8)).tallies_bytes
    tallies = Tallies(memory)
    rows = len(memory) // 32
    places = [tallies.enter(client, 0) for client in range(rows + 1)]
    assert sorted(places[:-1]) == list(range(rows))
    assert tally_at(memory, places[-1]) is None
    tallies.leave(rows)  # nothing to give back
    tallies.leave(3)
    assert tallies.enter(rows + 1, 0) == places[3]
