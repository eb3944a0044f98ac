"""Files of samples: what is torn, damaged, foreign or of another data set is never read."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from swift_loader.cache import files
from swift_loader.cache.files import (
    ForeignError,
    Index,
    Record,
    checksum,
    data_path,
    folder_of,
    open_private,
    private_folder,
    read_index,
)

_RECORD_BYTES = 64


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kept"


def keep(index: Index, *keys: int, nbytes: int = 500) -> list[Record]:
    """Samples as a worker and the store write them: the bytes first, then the records."""
    records = []
    for key in keys:
        place = index.place(nbytes)
        assert place is not None
        segment, offset = place
        data = bytes([key % 256]) * nbytes
        fd = open_private(data_path(index.folder, segment), os.O_RDWR)
        os.pwrite(fd, data, offset)
        os.close(fd)
        records.append(Record(key, segment, offset, nbytes - 20, 20, 7, checksum(data)))
    index.append(records)
    return records


def keys(folder: Path) -> list[int]:
    return [record.key for record in read_index(folder)[0]]


def test_what_was_kept_is_found_again(folder: Path) -> None:
    index = Index(folder, None)
    assert index.records == []
    kept = keep(index, 3, 1, 2)
    assert index.used == 3 * 512
    index.close()
    again = Index(folder, None)
    assert again.records == kept
    assert again.used == 3 * 512
    keep(again, 4)
    again.close()
    assert keys(folder) == [3, 1, 2, 4]


@pytest.mark.parametrize("torn", [1, _RECORD_BYTES // 2, _RECORD_BYTES - 1])
def test_a_torn_record_is_not_read_and_the_next_run_writes_over_it(folder: Path, torn: int) -> None:
    index = Index(folder, None)
    keep(index, 1, 2)
    index.close(sync=False)
    path = folder / "index"
    os.truncate(path, path.stat().st_size - torn)
    assert keys(folder) == [1]
    index = Index(folder, None)
    keep(index, 5)
    index.close()
    assert keys(folder) == [1, 5]
    assert path.stat().st_size == 3 * _RECORD_BYTES  # and the mark of what is synced


@pytest.mark.parametrize("at", range(0, _RECORD_BYTES, 4))
def test_a_record_with_a_wrong_bit_is_not_read(folder: Path, at: int) -> None:
    index = Index(folder, None)
    keep(index, 1, 2, 3)
    index.close(sync=False)
    path = folder / "index"
    data = bytearray(path.read_bytes())
    data[_RECORD_BYTES + at] ^= 1
    path.write_bytes(data)
    assert keys(folder) == [1]  # nothing after it counts either


def test_zeros_that_a_power_cut_left_in_the_index_are_no_records(folder: Path) -> None:
    index = Index(folder, None)
    keep(index, 1)
    index.close(sync=False)
    with open(folder / "index", "ab") as file:
        file.write(bytes(3 * _RECORD_BYTES))
    assert keys(folder) == [1]


def test_a_record_of_bytes_that_its_segment_lacks_does_not_count(folder: Path) -> None:
    index = Index(folder, None)
    _, second = keep(index, 1, 2)
    index.close(sync=False)
    end = second.offset + second.numbers + second.skeleton
    os.truncate(data_path(folder, 0), end)
    assert keys(folder) == [1, 2]
    os.truncate(data_path(folder, 0), end - 1)
    assert keys(folder) == [1]
    data_path(folder, 0).unlink()
    assert keys(folder) == []


def test_what_was_not_synced_before_a_reboot_is_doubtful(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index(folder, None)
    keep(index, 1)
    index.close()
    index = Index(folder, None)
    keep(index, 2)
    index.close(sync=False)  # killed
    assert [record.doubtful for record in read_index(folder)[0]] == [False, False]
    monkeypatch.setattr(files, "boot_number", lambda: 1)
    assert [record.doubtful for record in read_index(folder)[0]] == [False, True]
    monkeypatch.setattr(files, "boot_number", lambda: 0)  # a system that doesn't tell
    assert [record.doubtful for record in read_index(folder)[0]] == [False, True]


def test_the_bound_is_kept(folder: Path) -> None:
    index = Index(folder, 1024)
    keep(index, 1, 2)
    assert index.place(1) is None
    index.close()
    again = Index(folder, 1024)
    assert again.place(1) is None
    again.close()


def test_segments_follow_each_other_and_a_large_sample_has_one_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "SEGMENT_BYTES", 1000)
    index = Index(folder, None)
    assert index.place(900) == (0, 0)
    assert index.place(100) == (1, 0)
    assert index.place(3000) == (2, 0)
    assert data_path(folder, 2).stat().st_size >= 3000
    index.close()
    again = Index(folder, None)
    assert again.place(100) == (3, 0)  # never where another run has been
    again.close()


def test_a_full_disk_leaves_an_index_that_is_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index(folder, None)
    keep(index, 1)
    write = os.write

    def cut(fd: int, data: bytes) -> int:
        return write(fd, data[:20])

    monkeypatch.setattr(os, "write", cut)
    with pytest.raises(OSError, match="No space left") as raised:
        keep(index, 2)
    assert raised.value.errno == errno.ENOSPC
    monkeypatch.undo()
    keep(index, 3)
    index.close()
    assert keys(folder) == [1, 3]


def test_a_second_store_reads_and_does_not_write(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_LOCK_WAIT_S", 0.01)
    first = Index(folder, None)
    kept = keep(first, 1)
    second = Index(folder, None)
    assert not second.may_write
    assert second.records == kept
    assert second.place(10) is None
    second.append(kept)
    second.close()
    first.close()
    assert keys(folder) == [1]
    third = Index(folder, None)
    assert third.may_write
    third.close()


def test_files_are_the_users_own(folder: Path) -> None:
    before = os.umask(0)
    try:
        index = Index(folder, None)
        keep(index, 1)
        files.write_about(folder, {"dataset": "Images"})
        index.close()
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in folder.iterdir()} == {"about.json", "data-0", "index", "lock"}
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


@pytest.mark.parametrize("name", ["index", "lock", "data-0"])
def test_files_that_are_open_to_others_or_links_are_refused(
    folder: Path, tmp_path: Path, name: str
) -> None:
    index = Index(folder, None)
    keep(index, 1)
    index.close()
    path = folder / name
    path.chmod(0o640)
    with pytest.raises(ForeignError, match="open to other users"):
        open_private(path, os.O_RDONLY)
    path.chmod(0o600)
    os.rename(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"symbolic links|Too many levels"):
        open_private(path, os.O_RDONLY)


def test_folders_of_others_and_links_to_folders_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    private_folder(own)
    link = tmp_path / "link"
    link.symlink_to(own)
    with pytest.raises(ForeignError, match="another user"):
        private_folder(link)
    monkeypatch.setattr(os, "geteuid", lambda: own.stat().st_uid + 1)
    with pytest.raises(ForeignError, match="another user"):
        private_folder(own)
    with pytest.raises(ForeignError, match="another user"):
        Index(own, None)


def test_data_sets_and_keys_have_folders_of_their_own() -> None:
    imprints = "a" * 32, "b" * 32
    names = (None, "k", "k2", "../../etc", "a/b", "a b", "x" * 100, "größe", ".", "..")
    folders = {folder_of("/disk", key, imprint) for key in names for imprint in imprints}
    assert len(folders) == len(names) * len(imprints)
    assert {folder.parent for folder in folders} == {Path("/disk")}
    assert all("/" not in folder.name and len(folder.name) < 120 for folder in folders)
