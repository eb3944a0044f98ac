"""``swift-loader cache``: lists, verifies and removes what is the user's, nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from swift_loader.cache import files
from swift_loader.cache.command import cache
from swift_loader.cache.files import Index, data_path, folder_of, write_about
from swift_loader.errors import ConfigError
from tests.unit.cache.test_files import keep


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Two data sets, and things that are none of a cache's."""
    for key, imprint, samples in (("one", "a" * 32, 3), ("two", "b" * 32, 2)):
        index = Index(folder_of(str(tmp_path), key, imprint), None)
        keep(index, *range(samples))
        write_about(index.folder, {"dataset": f"Images of {key}", "samples": 9, "key": key})
        index.close()
    (tmp_path / "photographs").mkdir()
    (tmp_path / f"{os.geteuid()}-notes").mkdir()
    (tmp_path / f"{os.geteuid() + 1}-other-{'c' * 16}").mkdir()
    (tmp_path / f"{os.geteuid() + 1}-other-{'c' * 16}" / "lock").touch()
    return tmp_path


def names(disk: Path) -> list[str]:
    own = f"{os.geteuid()}-"
    return sorted(path.name for path in disk.iterdir() if path.name.startswith(own))


def test_ls_lists_data_sets_of_the_user(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cache(["ls", str(disk)]) == 0
    one, two = capsys.readouterr().out.splitlines()
    assert f"one-{'a' * 16}  Images of one of 9, key 'one': 3 samples, 1.5 kB" in one
    assert "2 samples" in two
    assert "in use" not in one + two


def test_ls_says_what_is_in_use_and_knows_nothing_of_a_torn_note(
    disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(str(disk), "one", "a" * 32)
    (folder / "about.json").write_text('{"dataset')
    index = Index(folder, None)
    assert cache(["ls", str(disk)]) == 0
    index.close()
    one, two = capsys.readouterr().out.splitlines()
    assert "? of ?, key None: 3 samples" in one
    assert one.endswith(", in use")
    assert not two.endswith("in use")


def test_verify_tells_which_samples_are_damaged(
    disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cache(["verify", str(disk)]) == 0
    assert "damaged" not in capsys.readouterr().out
    with open(data_path(folder_of(str(disk), "one", "a" * 32), 0), "r+b") as file:
        file.seek(512 + 100)
        file.write(b"\xff")
    assert cache(["verify", str(disk)]) == 1
    one, two = capsys.readouterr().out.splitlines()
    assert one.endswith("3 samples, damaged: 1")
    assert two.endswith("2 samples")
    assert cache(["verify", str(disk), two.partition(":")[0]]) == 0


def test_rm_removes_one_or_all_and_nothing_else(
    disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = {path.name for path in disk.iterdir()} - {name for name in names(disk) if "a" in name}
    one = folder_of(str(disk), "one", "a" * 32).name
    assert cache(["rm", str(disk), one]) == 0
    assert capsys.readouterr().out == f"removed {one}\n"
    assert {path.name for path in disk.iterdir()} == {*others, names(disk)[0]} - {one}
    assert cache(["rm", str(disk)]) == 0
    assert names(disk) == [f"{os.geteuid()}-notes"]
    assert (disk / "photographs").is_dir()
    assert (disk / f"{os.geteuid() + 1}-other-{'c' * 16}").is_dir()


def test_rm_refuses_what_is_in_use(disk: Path) -> None:
    index = Index(folder_of(str(disk), "one", "a" * 32), None)
    with pytest.raises(ConfigError, match="in use by a run"):
        cache(["rm", str(disk), index.folder.name])
    index.close()
    assert len(names(disk)) == 3


def test_rm_leaves_what_somebody_put_beside_the_samples(disk: Path) -> None:
    folder = folder_of(str(disk), "one", "a" * 32)
    (folder / "mine.txt").touch()
    with pytest.raises(ConfigError, match=r"mine\.txt"):
        cache(["rm", str(disk), folder.name])
    assert {path.name for path in folder.iterdir()} > {"mine.txt", "index", "lock"}


def test_what_is_not_there_or_foreign_is_an_error_that_says_so(
    disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="is no folder"):
        cache(["ls", str(disk / "nowhere")])
    with pytest.raises(ConfigError, match="there is no x"):
        cache(["verify", str(disk), "x"])
    folder_of(str(disk), "one", "a" * 32).chmod(0o755)
    with pytest.raises(ConfigError, match="open to other users"):
        cache(["rm", str(disk)])
    assert len(names(disk)) == 3


def test_an_index_that_is_open_to_others_is_an_error_and_not_a_traceback(disk: Path) -> None:
    (folder_of(str(disk), "one", "a" * 32) / "index").chmod(0o644)
    for command in ("ls", "verify"):
        with pytest.raises(ConfigError, match="open to other users"):
            cache([command, str(disk)])


def test_a_new_cache_is_listed_as_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_LOCK_WAIT_S", 0.01)
    Index(folder_of(str(tmp_path), None, "d" * 32), None).close()
    assert cache(["ls", str(tmp_path)]) == 0
    assert "0 samples" in capsys.readouterr().out
    assert cache(["verify", str(tmp_path)]) == 0
    assert cache(["rm", str(tmp_path)]) == 0
    assert list(tmp_path.iterdir()) == []
