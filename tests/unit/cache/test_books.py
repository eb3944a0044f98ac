"""The store's books: each sample is made by one client, and nobody waits for a dead one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from swift_loader.cache.books import Books
from swift_loader.cache.messages import BUSY, IN_MEMORY, LOOKING, TO_MAKE, Ask, Keep, Room

_PAGE = 256
_MEMORY = 40 * _PAGE


def _keys(*keys: int) -> np.ndarray:
    return np.array(keys, np.int64)


def _ask(serial: int, *keys: int) -> Ask:
    return Ask(serial, 0, 0, 0, 0, 0, False, _keys(*keys))


def _keep(books: Books, client: int, key: int, nbytes: int = 500, written: bool = True) -> list:
    row = books.room(client, Room(0, _keys(0, key, 0, 0, 0, nbytes, 20, 100).reshape(1, 8))).rows[0]
    in_memory = int(written and row[0] >= 0)
    return books.keep(client, Keep(0, _keys(0, key, in_memory, 0, 0).reshape(1, 5)))


def test_a_sample_is_made_once_and_others_get_it() -> None:
    books = Books(_MEMORY, 4 * _MEMORY, _PAGE)
    for client in (1, 2):
        books.enter(client, 0)
    assert books.ask(1, _ask(1, 7)).rows[0, 0] == TO_MAKE
    assert books.ask(2, _ask(1, 7)).rows[0, 0] == BUSY
    assert books.wait(2, _ask(2, 7)) == []
    [reply] = _keep(books, 1, 7)
    assert reply.client == 2
    assert reply.message.rows[0, [0, 3, 4]].tolist() == [IN_MEMORY, 500, 20]
    assert books.figures(0).misses == 1


def test_the_next_that_waits_makes_what_a_dead_one_was_at() -> None:
    books = Books(_MEMORY, 4 * _MEMORY, _PAGE)
    for client in (1, 2, 3):
        books.enter(client, 0)
    books.ask(1, _ask(1, 7, 8))
    for client in (2, 3):
        books.wait(client, _ask(2, 7, 8))
    replies = books.leave(1)
    assert [reply.client for reply in replies] == [2]
    assert replies[0].message.rows[:, 0].tolist() == [TO_MAKE, TO_MAKE]
    assert _keep(books, 2, 7) == []  # the other one is still at work
    [reply] = _keep(books, 2, 8)
    assert reply.client == 3
    assert reply.message.rows[:, 0].tolist() == [IN_MEMORY, IN_MEMORY]


def test_a_sample_that_could_not_be_kept_is_made_by_whoever_waits() -> None:
    books = Books(0, _PAGE, _PAGE)
    for client in (1, 2):
        books.enter(client, 0)
    books.ask(1, _ask(1, 7))
    books.wait(2, _ask(2, 7))
    [reply] = _keep(books, 1, 7)
    assert reply.message.rows[0, 0] == TO_MAKE


class Clients(RuleBasedStateMachine):
    """Clients ask, keep, fail, wait and die at random."""

    def __init__(self) -> None:
        super().__init__()
        self.books = Books(_MEMORY, 4 * _MEMORY, _PAGE)
        self.alive: dict[int, dict] = {}
        self.next_client = self.serial = 0
        self.enter()

    @rule()
    def enter(self) -> None:
        if len(self.alive) < 4:
            self.next_client += 1
            self.books.enter(self.next_client, 0)
            self.alive[self.next_client] = {"made": set(), "shown": {}, "waits": {}}

    @rule(pick=st.integers(0, 3), keys=st.sets(st.integers(0, 12), min_size=1, max_size=6))
    def ask(self, pick: int, keys: set[int]) -> None:
        client = self._client(pick)
        me = self.alive[client]
        if me["waits"]:
            return
        self.serial += 1
        wanted = sorted(keys)
        self._take(client, self.books.ask(client, _ask(self.serial, *wanted)), wanted)

    @rule(pick=st.integers(0, 3), nbytes=st.integers(1, 3000), written=st.booleans())
    def keep_all(self, pick: int, nbytes: int, written: bool) -> None:
        client = self._client(pick)
        me = self.alive[client]
        for key in sorted(me["made"]):
            me["made"].discard(key)
            self._send(_keep(self.books, client, key, nbytes, written))

    @rule(pick=st.integers(0, 3), keys=st.sets(st.integers(0, 12), min_size=1, max_size=6))
    def wait(self, pick: int, keys: set[int]) -> None:
        client = self._client(pick)
        me = self.alive[client]
        if me["made"] or me["waits"]:
            return
        self.serial += 1
        me["waits"][self.serial] = sorted(keys)
        self._send(self.books.wait(client, _ask(self.serial, *sorted(keys))))

    @rule(pick=st.integers(0, 3))
    def done(self, pick: int) -> None:
        client = self._client(pick)
        for serial in list(self.alive[client]["shown"]):
            del self.alive[client]["shown"][serial]
            self.books.done(client, serial)

    @rule(pick=st.integers(0, 3))
    def die(self, pick: int) -> None:
        client = self._client(pick)
        if len(self.alive) > 1:
            del self.alive[client]
            self._send(self.books.leave(client))

    def _client(self, pick: int) -> int:
        return sorted(self.alive)[pick % len(self.alive)]

    def _take(self, client: int, answer, keys: list[int]) -> None:
        me = self.alive[client]
        for key, row in zip(keys, answer.rows.tolist(), strict=True):
            if row[0] == TO_MAKE:
                assert not any(key in other["made"] for other in self.alive.values())
                me["made"].add(key)
            if row[0] == IN_MEMORY:
                place = row[2], row[2] + row[3] + row[4]
                me["shown"].setdefault(answer.serial, []).append((key, place))

    def _send(self, replies: list) -> None:
        for reply in replies:
            keys = self.alive[reply.client]["waits"].pop(reply.message.serial)
            self._take(reply.client, reply.message, keys)

    @invariant()
    def what_is_looked_at_stays(self) -> None:
        shown = {
            key: place
            for me in self.alive.values()
            for each in me["shown"].values()
            for key, place in each
        }
        places = sorted(shown.values())
        assert all(a[1] <= b[0] for a, b in pairwise(places))

    @invariant()
    def bound_is_kept(self) -> None:
        assert self.books.figures(0).memory_used <= _MEMORY

    @invariant()
    def nobody_waits_for_nobody(self) -> None:
        made = {key for me in self.alive.values() for key in me["made"]}
        for me in self.alive.values():
            for keys in me["waits"].values():
                assert made & set(keys)


TestClients = Clients.TestCase
TestClients.settings = settings(max_examples=25, stateful_step_count=30)


def test_who_looks_for_what_is_wanted_next_has_nothing_to_make() -> None:
    books = Books(_MEMORY, 4 * _MEMORY, _PAGE)
    for client in (1, 2):
        books.enter(client, 0)
    books.ask(1, _ask(1, 7))
    _keep(books, 1, 7)
    rows = books.ask(2, _ask(1, 7, 8)._replace(how=LOOKING)).rows
    assert rows[:, 0].tolist() == [IN_MEMORY, BUSY]
    assert books.figures(0).hits == 1
    assert books.ask(1, _ask(2, 8)).rows[0, 0] == TO_MAKE  # nobody is at it
    books.leave(2)
