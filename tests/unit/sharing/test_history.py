"""What a producer keeps: what somebody has to get yet, and the band."""

from __future__ import annotations

from swift_loader.sharing.history import Band, History
from swift_loader.sharing.messages import EpochBegins, EpochEnds, Position


def epoch(history: History[int], number: int, nb_batches: int, first: int = 0) -> None:
    begin(history, number, nb_batches, first)
    for k in range(first, nb_batches):
        history.add(k, 1)
    history.end(EpochEnds(number, nb_batches, EpochBegins(number + 1, 0, nb_batches, None)))


def begin(history: History[int], number: int, nb_batches: int, first: int = 0) -> None:
    history.begin(EpochBegins(number, first, nb_batches, None))


def wide() -> History[int]:
    return History(Band(0.0, 100, 1000))


def test_a_short_beginning_of_an_epoch_is_kept_whole() -> None:
    history: History[int] = History(Band(0.5, 1, 1000))
    begin(history, 0, 8)
    for k in range(4):
        history.add(k, 1)
        history.forget(None)
        assert history.whole_epoch == 0
        assert history.nb_batches_from(0) == k + 1
    history.add(4, 1)
    assert history.whole_epoch is None
    history.forget(None)
    assert history.nb_batches_from(history.head) == 0


def test_the_band_is_bounded_in_bytes() -> None:
    history: History[int] = History(Band(1.0, 100, 10))
    begin(history, 0, 8)
    history.add(0, 8)
    assert history.whole_epoch == 0
    history.add(1, 8)
    assert history.whole_epoch is None


def test_nothing_that_a_slow_consumer_needs_is_forgotten() -> None:
    history: History[int] = History(Band(0.0, 0, 0))
    epoch(history, 0, 5)
    history.forget(2)
    assert history.nb_batches_from(2) == 4
    assert history.find(Position(0, 1)) == 2
    assert history.find(Position(0, 0)) is None


def test_every_position_that_is_there_is_found() -> None:
    history = wide()
    epoch(history, 0, 3)
    begin(history, 1, 3)
    history.add(0, 1)
    assert history.find(Position(0, 0)) == 0
    assert history.find(Position(0, 2)) == 3
    assert history.find(Position(0, 3)) == 4, "its end is still to come"
    assert history.find(Position(1, 0)) == 5
    assert history.find(Position(1, 1)) == history.head
    assert history.find(Position(4, 0)) == history.head


def test_positions_behind_reach_back_over_the_end_of_an_epoch() -> None:
    history = wide()
    epoch(history, 0, 5)
    assert history.position_behind(0) == Position(1, 0)
    assert history.position_behind(2) == Position(0, 3)
    begin(history, 1, 5)
    assert history.position_behind(2) == Position(0, 3)
    history.add(0, 1)
    assert history.position_behind(0) == Position(1, 1)
    assert history.position_behind(1) == Position(1, 0)
    assert history.position_behind(2) == Position(0, 4)


def test_a_resumed_epoch_begins_where_it_was() -> None:
    history = wide()
    begin(history, 2, 9, first=4)
    history.add(4, 1)
    assert history.find(Position(2, 4)) == 0
    assert history.find(Position(2, 2)) is None
    assert history.position_behind(1) == Position(2, 4)
