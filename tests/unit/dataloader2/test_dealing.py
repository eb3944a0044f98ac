"""The pure parts of the lines between processes: dealing by turns, and the credit of a feed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_loader.batch.arena import Arena
from swift_loader.batch.codec import encode
from swift_loader.batch.tree import approximate_bytes
from swift_loader.dataloader2.workers.dealer import Dealer
from swift_loader.dataloader2.workers.feed import Feed
from swift_loader.pipeline.link import MadeBatch, NotMade
from swift_loader.transport.messages import StageTimes
from swift_loader.worker.faults import report


class TestDealer:
    @given(st.integers(0, 30), st.integers(1, 4), st.data())
    def test_whoever_asks_when_gets_every_nth(self, n: int, nb_taker: int, data: Any) -> None:
        dealer = Dealer(iter(range(n)), nb_taker)
        got: list[list[int]] = [[] for _ in range(nb_taker)]
        asking = set(range(nb_taker))
        while asking:
            taker = data.draw(st.sampled_from(sorted(asking)))
            try:
                got[taker].append(dealer.next_for(taker))
            except StopIteration:
                asking.remove(taker)
        assert got == [list(range(i, n, nb_taker)) for i in range(nb_taker)]

    def test_what_waits_is_bounded_in_bytes(self) -> None:
        dealer = Dealer((np.zeros(1000, np.uint8) for _ in range(100)), 2, 10_000)
        taken = 0
        with pytest.raises(BufferError, match=r"items by worker: \{0: 0, 1: 10\}"):
            for _ in range(100):
                dealer.next_for(0)
                taken += 1
        assert taken == 10

    def test_an_error_is_raised_to_whoever_comes_to_it(self) -> None:
        def items() -> Any:
            yield 0
            raise KeyError("bad")

        dealer = Dealer(items(), 2)
        assert dealer.next_for(0) == 0
        with pytest.raises(KeyError):
            dealer.next_for(1)

    def test_sizes_count_what_is_inside(self) -> None:
        assert approximate_bytes(torch.zeros(1000)) >= 4000
        assert approximate_bytes({"a": [np.zeros(1000), b"x" * 500]}) >= 8500
        assert approximate_bytes(1) < 100


class Port:
    """Writes down what is asked, and answers as told."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []

    def give(self, ticket: int, epoch: int, nb_item: int) -> None:
        self.asked.append((ticket, epoch, nb_item))

    def flush(self) -> None:
        pass


class Chunk:
    """A parcel that lies in this process."""

    def __init__(self, items: list[Any], ended: bool, nbytes: int = 0) -> None:
        self.skeleton = encode((items, ended), Arena(None))
        self.nbytes = nbytes
        self.discarded = False

    def open(self) -> Any:
        return self.skeleton, np.empty(0, np.uint8)

    def discard(self) -> None:
        self.discarded = True


def made(ticket: int, chunk: Chunk) -> MadeBatch:
    return MadeBatch(ticket, 0, StageTimes(0, 0, 0), chunk)


class TestFeed:
    @settings(max_examples=40)
    @given(st.integers(1, 30), st.data())
    def test_never_more_than_the_credit_is_promised_or_held(self, nb_ahead: int, data: Any) -> None:
        feed, port = Feed(nb_ahead), Port()
        feed.begin(1, port)
        answered = 0
        for step in range(40):
            promised = sum(nb for _, _, nb in port.asked[answered:])
            assert 0 < promised + len(feed.items) <= nb_ahead
            if feed.items and data.draw(st.booleans()):
                feed.items.popleft()
                feed.ask(port)
            elif answered < len(port.asked):
                ticket, _, nb_item = port.asked[answered]
                answered += 1
                count = data.draw(st.integers(1, nb_item))
                feed.take(made(ticket, Chunk([step] * count, ended=False)))
            else:
                feed.items.popleft()
                feed.ask(port)

    def test_large_items_are_asked_for_singly(self) -> None:
        feed, port = Feed(20), Port()
        feed.begin(1, port)
        assert [nb for _, _, nb in port.asked] == [10, 10]
        feed.take(made(1, Chunk([0] * 10, False, nbytes=100 << 20)))
        feed.items.clear()
        feed.ask(port)
        assert {nb for _, _, nb in port.asked[2:]} == {1}

    def test_answers_to_an_epoch_before_are_dropped(self) -> None:
        feed, port = Feed(2), Port()
        feed.begin(1, port)
        old = port.asked[0][0]
        feed.begin(2, port)
        chunk = Chunk([1], False)
        feed.take(made(old, chunk))
        assert chunk.discarded
        feed.take(NotMade(old, report(KeyError("old"), "")))
        assert not feed.is_settled
        new = next(ticket for ticket, epoch, _ in port.asked if epoch == 2)
        feed.take(made(new, Chunk([5], True)))
        assert (list(feed.items), feed.ended) == ([5], True)

    def test_after_the_end_or_an_error_nothing_is_asked(self) -> None:
        for event in (made(1, Chunk([], True)), NotMade(1, report(KeyError("x"), "making"))):
            feed, port = Feed(1), Port()
            feed.begin(1, port)
            feed.take(event)
            assert feed.is_settled
            nb_asked = len(port.asked)
            feed.ask(port)
            assert len(port.asked) == nb_asked

    def test_a_skipped_question_says_so(self) -> None:
        feed, port = Feed(1), Port()
        feed.begin(1, port)
        feed.take(NotMade(1, None))
        assert feed.skipped
