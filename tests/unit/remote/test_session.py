"""A session whose workers can't be started for now."""

from __future__ import annotations

import errno
import hashlib
from typing import Any, NoReturn

import pytest

pytest.importorskip("zmq")

from swift_loader.remote.messages import PROTOCOL, Chunk, Hello
from swift_loader.remote.payloads import Payloads
from swift_loader.remote.session import Session
from swift_loader.remote.versions import here


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EAGAIN, errno.ENOMEM])
def test_worker_that_can_not_be_started_now_is_tried_again_later(number: int) -> None:
    tried = 0

    def fork(*_: Any) -> NoReturn:
        nonlocal tried
        tried += 1
        raise OSError(number, "none left")

    data = b"a dataset"
    sha256 = hashlib.sha256(data).hexdigest()
    hello = Hello(PROTOCOL, here(), len(data), sha256, 0, 1, 1, 0, 0, 1)
    said: list[Any] = []
    session = Session(1, hello, Payloads(), 2, fork, said.append, lambda: None)
    session.take(Chunk(0, data))
    for attempt in (1, 2):
        assert session.resize(2) == []
        assert tried == attempt
        assert "none left" in session.wanting
    assert session.state == "starting"
    assert said == []
    session.close()
