"""How many descriptors a loader needs, and what is said where there are fewer."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from swift_loader.errors import NoRoomError
from swift_loader.loader.open_files import Need, check_open_files


@pytest.fixture
def few() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_error_says_how_many_are_needed_and_what_to_do(few: None) -> None:
    check_open_files(Need(1, 1))
    with pytest.raises(NoRoomError, match=r"needs \d+ descriptors.*may have 64.*100 workers") as it:
        check_open_files(Need(100, 100))
    assert "ulimit -n" in str(it.value)
    assert "worker_per_consumer" in str(it.value)


def test_endpoints_readers_and_workers_each_need_some() -> None:
    least = Need(1, 1).count
    assert least < Need(1, 2).count < Need(2, 2).count < Need(2, 2, endpoints=1).count
    assert Need(2, 2, endpoints=1).count < Need(2, 2, endpoints=2).count
