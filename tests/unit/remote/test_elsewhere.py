"""What `remote_workers` may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("zmq")

from swift_loader import ConfigError
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
    assert len(remote_workers_of("tcp://127.0.0.1:6543", None)) == 1
    assert remote_workers_of(own, None) == [own]
    assert remote_workers_of(None, None) == []


@pytest.mark.parametrize(
    "wrong", [["node01:6543"], ["http://node01:1"], ["tcp://node01"], ["tcp://:5"], [3], 3, [None]]
)
def test_what_is_no_address_is_named(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="tcp://"):
        remote_workers_of(wrong, None)


@pytest.mark.parametrize(
    "address", ["tcp://node01:6543", "tcp://10.0.0.1:1", "tcp://[2001:db8::1]:1", "tcp://0.0.0.0:1"]
)
def test_other_machine_without_a_key_is_refused_unless_told(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SWIFT_LOADER_KEY", raising=False)
    with pytest.raises(ConfigError, match="run any code") as caught:
        remote_workers_of(address, None)
    assert "keygen" in str(caught.value)
    assert "remote_key=False" in str(caught.value)
    with pytest.warns(RuntimeWarning, match="run any code"):
        assert len(remote_workers_of(address, False)) == 1


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:1", "tcp://127.9.9.9:1", "tcp://localhost:1", "tcp://[::1]:1"]
)
def test_this_machine_needs_no_key(
    address: str, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.delenv("SWIFT_LOADER_KEY", raising=False)
    with pytest.warns(RuntimeWarning, match="any user of this machine"):
        assert len(remote_workers_of(address, None)) == 1
    recwarn.clear()
    assert len(remote_workers_of(address, False)) == 1
    assert len(remote_workers_of("ipc:///run/user/1/endpoint", None)) == 1
    assert not recwarn.list
