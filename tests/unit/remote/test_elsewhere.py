"""What `remote_workers` may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("zmq")

from swift_loader import ConfigError, SwiftLoader
from swift_loader.pipeline.elsewhere import RemoteWorkers, remote_workers_of
from swift_loader.remote.keys import Keys


class Own:
    nb_links = 3

    def launchers(self, brief: Any) -> list[Any]:
        return []


def test_addresses_and_objects_may_be_mixed(tmp_path: Path) -> None:
    Keys.generate().write(tmp_path / "k")
    own = Own()
    first, second = remote_workers_of(["tcp://node01:6543", own], tmp_path / "k")
    assert isinstance(first, RemoteWorkers)
    assert second is own
    assert len(remote_workers_of("tcp://node01:6543", None)) == 1
    assert remote_workers_of(own, None) == [own]
    assert remote_workers_of(None, None) == []


@pytest.mark.parametrize(
    "wrong", [["node01:6543"], ["http://node01:1"], ["tcp://node01"], ["tcp://:5"], [3], 3, [None]]
)
def test_what_is_no_address_is_named(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="tcp://"):
        remote_workers_of(wrong, None)


def test_no_local_workers_need_others() -> None:
    with pytest.raises(ConfigError, match="worker_per_consumer"):
        SwiftLoader(range, worker_per_consumer=0)
