"""Workers that there is no room for: tried again, until it is an error that says what to do."""

from __future__ import annotations

import errno

import pytest

from swift_loader.errors import NoRoomError
from swift_loader.pipeline.actions import Action, Launch
from swift_loader.pipeline.lacking import Lacking, Launches, is_lack, told


def test_worker_is_tried_again_as_long_as_others_make_batches() -> None:
    lacking = Lacking()
    actions: list[Action] = []
    for _ in range(100):
        assert lacking.launch(1, "too many open files", 5.0, actions) is None
        lacking.over()
    launches = [action for action in actions if isinstance(action, Launch)]
    assert len(launches) == 100
    assert all(launch.worker == 1 and 5.0 < launch.at_s < 6.0 for launch in launches)
    errors = [lacking.launch(1, "too many open files", 5.0, actions) for _ in range(20)]
    told = next(error for error in errors if error is not None)
    assert isinstance(told, NoRoomError)
    assert "worker 1 can't be started" in str(told)
    assert "too many open files" in str(told)


def test_launches_come_when_they_are_due_and_once() -> None:
    launches = Launches()
    assert launches.next_s == float("inf")
    launches.put(3, 2.0)
    launches.put(5, 1.0)
    assert launches.next_s == 1.0
    assert launches.due(1.5) == [5]
    assert launches.due(2.0) == [3]
    assert launches.due(9.0) == []


def test_what_is_lacking_is_told_apart_from_other_errors() -> None:
    assert is_lack(OSError(errno.EMFILE, ""))
    assert is_lack(NoRoomError("no room"))
    assert not is_lack(OSError(errno.ENOENT, ""))
    assert not is_lack(ValueError())
    with pytest.raises(NoRoomError, match="ulimit"), told():
        raise OSError(errno.EAGAIN, "no processes")
    with pytest.raises(FileNotFoundError), told():
        raise FileNotFoundError(errno.ENOENT, "no file")
