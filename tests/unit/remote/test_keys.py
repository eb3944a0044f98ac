"""Keys: one file, its owner's alone, never shown."""

from __future__ import annotations

import os
import resource
import stat
from pathlib import Path

import pytest

pytest.importorskip("zmq")

from swift_loader.errors import ConfigError
from swift_loader.remote.binding import check_bind
from swift_loader.remote.keys import Keys, load_keys


def test_key_file_is_for_its_owner_alone_and_read_back(tmp_path: Path) -> None:
    keys, path = Keys.generate(), tmp_path / "k"
    keys.write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_keys(path) == keys
    assert load_keys(str(path)) == keys


def test_key_in_use_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "k"
    Keys.generate().write(path)
    with pytest.raises(ConfigError, match="must not be lost"):
        Keys.generate().write(path)


def test_full_disk_leaves_no_key_file(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(ConfigError, match="can't be written"):
            Keys.generate().write(tmp_path / "k")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())
    Keys.generate().write(tmp_path / "k")
    assert [path.name for path in tmp_path.iterdir()] == ["k"]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o602, 0o622, 0o604])
def test_key_that_others_can_read_or_write_is_refused(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "k"
    Keys.generate().write(path)
    path.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_keys(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_key_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "k"
    Keys.generate().write(path)
    os.chown(path, 12345, -1)
    with pytest.raises(ConfigError, match="another user") as caught:
        load_keys(path)
    assert "chown" in str(caught.value)


def test_pipe_in_place_of_a_key_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "k", 0o600)
    with pytest.raises(ConfigError, match="no plain file"):
        load_keys(tmp_path / "k")


def test_empty_key_file_is_told_from_a_wrong_one(tmp_path: Path) -> None:
    path = tmp_path / "k"
    path.touch(0o600)
    with pytest.raises(ConfigError, match=r"is empty: remove it.*keygen"):
        load_keys(path)


@pytest.mark.parametrize("how", ["option", "variable", "whole file"])
def test_key_itself_in_place_of_its_file_is_refused_and_not_shown(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "k"
    keys = Keys.generate()
    keys.write(path)
    text = path.read_text()
    line = text.splitlines()[-1]
    monkeypatch.setenv("SWIFT_LOADER_KEY", text if how == "whole file" else line)
    with pytest.raises(ConfigError, match="holds a key itself") as caught:
        load_keys(line if how == "option" else None)
    for part in line.split()[1:]:
        assert part not in str(caught.value)


@pytest.mark.parametrize("text", [" ", "hello", "swift-loader-key-1 a b c d", "\0" * 99])
def test_file_without_a_key_is_refused_and_not_quoted(text: str, tmp_path: Path) -> None:
    path = tmp_path / "k"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="keygen") as caught:
        load_keys(path)
    assert "a b c" not in str(caught.value)
    with pytest.raises(ConfigError, match="keygen"):
        load_keys(tmp_path / "nothing")


def test_repr_and_fingerprint_give_no_key_away() -> None:
    keys = Keys.generate()
    shown = f"{keys!r} {keys} {keys.fingerprint}"
    for secret in (keys.server_secret, keys.client_secret, keys.server_public, keys.client_public):
        assert secret.decode() not in shown
    assert Keys.generate().fingerprint != keys.fingerprint


def test_environment_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, path = Keys.generate(), tmp_path / "k"
    keys.write(path)
    monkeypatch.delenv("SWIFT_LOADER_KEY", raising=False)
    assert load_keys(None) is None
    monkeypatch.setenv("SWIFT_LOADER_KEY", str(path))
    assert load_keys(None) == keys


@pytest.mark.parametrize("bind", ["tcp://0.0.0.0:1", "tcp://*:1", "tcp://[::]:1", "tcp://node:1"])
def test_beyond_this_machine_nobody_binds_without_a_key(bind: str) -> None:
    with pytest.raises(ConfigError, match="--insecure"):
        check_bind(bind, None, insecure=False)
    assert "run any code" in check_bind(bind, None, insecure=True)
    assert check_bind(bind, Keys.generate(), insecure=False) == ""


@pytest.mark.parametrize("bind", ["tcp://127.0.0.1:0", "tcp://localhost:1", "tcp://[::1]:1"])
def test_on_this_machine_a_missing_key_is_warned_of(bind: str) -> None:
    assert "every user" in check_bind(bind, None, insecure=False)


@pytest.mark.parametrize("bind", ["", "0.0.0.0:1", "tcp://", "udp://1.1.1.1:1", "tcp://host"])
def test_what_is_no_address_can_not_be_bound(bind: str) -> None:
    with pytest.raises(ConfigError, match="tcp://"):
        check_bind(bind, None, insecure=True)
