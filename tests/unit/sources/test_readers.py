"""Readers of files: each item once, from any place on, and what is refused."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swift_loader import ConfigError, Shards
from swift_loader.sources.readers.archives import webdataset
from swift_loader.sources.readers.chunks import litdata
from swift_loader.sources.readers.columns import arrow, parquet
from swift_loader.sources.readers.hugging_face import hugging_face
from swift_loader.sources.readers.lines import json_lines

ROWS = [{"x": i, "text": f"row {i}"} for i in range(25)]


def all_of(shards: Shards) -> list[Any]:
    return [item for shard in range(len(shards.shards)) for item in shards.items(shard)]


def check_seeks(shards: Shards) -> None:
    """Every shard from every place on is what follows there."""
    for shard in range(len(shards.shards)):
        whole = list(shards.items(shard))
        for start in range(len(whole) + 1):
            assert list(shards.items(shard, start)) == whole[start:]


def test_row_groups_of_parquet_are_shards(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.Table.from_pylist(ROWS[:15]), tmp_path / "a.parquet", row_group_size=4)
    pq.write_table(pa.Table.from_pylist(ROWS[15:]), tmp_path / "b.parquet", row_group_size=4)
    shards = parquet(f"{tmp_path}/*.parquet")
    assert len(shards.shards) == 4 + 3
    assert shards.seeks
    assert all_of(shards) == ROWS
    check_seeks(shards)
    assert all_of(parquet(f"{tmp_path}/a.parquet", ["x"])) == [{"x": i} for i in range(15)]


def test_record_batches_of_arrow_are_shards(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file:
        table = pa.Table.from_pylist(ROWS)
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=10)
    shards = arrow(str(tmp_path / "a.arrow"))
    assert len(shards.shards) == 3
    assert all_of(shards) == ROWS
    check_seeks(shards)
    assert all_of(arrow(str(tmp_path / "a.arrow"), ["text"]))[3] == {"text": "row 3"}


def test_a_stream_of_arrow_is_a_shard(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.Table.from_pylist(ROWS)
    for name, new in (("a", pa.ipc.new_stream), ("b", pa.ipc.new_file)):
        with new(str(tmp_path / f"{name}.arrow"), table.schema) as writer:
            writer.write_table(table, max_chunksize=10)
    shards = arrow(f"{tmp_path}/*.arrow")
    assert len(shards.shards) == 1 + 3
    assert all_of(shards) == 2 * ROWS
    check_seeks(shards)
    assert all_of(arrow(str(tmp_path / "a.arrow"), ["x"]))[12] == {"x": 12}


def test_arrow_as_datasets_writes_it_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "data")
    assert all_of(arrow(f"{tmp_path}/data/*.arrow")) == ROWS


@pytest.mark.parametrize("content", [b"", b"ARROW1\0\0", b"x,text\n1,row 1\n"])
def test_what_is_no_arrow_is_named(content: bytes, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "a.arrow").write_bytes(content)
    with pytest.raises(ConfigError, match=r"a\.arrow.*neither a file nor a stream of Arrow"):
        arrow(str(tmp_path / "a.arrow"))


def test_files_of_json_lines_are_shards(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n\n" for row in ROWS[:10]))
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write("\n".join(map(json.dumps, ROWS[10:])))
    shards = json_lines([f"{tmp_path}/a.jsonl", f"{tmp_path}/*.gz"])
    assert len(shards.shards) == 2
    assert all_of(shards) == ROWS
    check_seeks(shards)


def write_tar(path: Path, files: dict[str, bytes], compression: str = "") -> None:
    with tarfile.open(name=path, mode=f"w:{compression}") as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def test_archives_are_read_as_webdataset_reads_them(tmp_path: Path) -> None:
    for number in range(2):
        files: dict[str, bytes] = {}
        for i in range(5):
            files[f"train/{number}.d/{i:03}.img.PNG"] = bytes([i]) * 20
            files[f"train/{number}.d/{i:03}.cls"] = str(i).encode()
        write_tar(tmp_path / f"{number:03}.tar", files)
    shards = webdataset(f"{tmp_path}/*.tar")
    samples = all_of(shards)
    assert len(samples) == 10
    assert samples[6] == {
        "__key__": "train/1.d/001",
        "__url__": str(tmp_path / "001.tar"),
        "img.png": b"\1" * 20,
        "cls": b"1",
    }
    assert not shards.seeks
    check_seeks(shards)
    wds = pytest.importorskip("webdataset")
    theirs = wds.WebDataset([str(tmp_path / f"{n:03}.tar") for n in range(2)], shardshuffle=False)
    assert [
        {key: value for key, value in sample.items() if key != "__local_path__"}
        for sample in theirs
    ] == samples


@pytest.mark.parametrize(
    ("ending", "compression"),
    [("tar.gz", "gz"), ("tgz", "gz"), ("tar.xz", "xz"), ("txz", "xz"), ("tbz2", "bz2")],
)
def test_archives_may_be_compressed(ending: str, compression: str, tmp_path: Path) -> None:
    write_tar(tmp_path / f"a.{ending}", {f"{i}.txt": b"%d" % i for i in range(30)}, compression)
    shards = webdataset(f"{tmp_path}/*.{ending}")
    assert [sample["txt"] for sample in all_of(shards)] == [b"%d" % i for i in range(30)]


def test_braces_stand_for_many(tmp_path: Path) -> None:
    pytest.importorskip("braceexpand")
    shards = Shards("s3://data/{000..002}.tar", iter)
    assert list(shards.shards) == [f"s3://data/{n:03}.tar" for n in range(3)]
    assert len(webdataset(f"{tmp_path}/{{a,b}}.tar").shards) == 2


def examples(names: list[str]) -> Iterator[dict[str, Any]]:
    for name in names:
        for i in range(4):
            yield {"name": name, "i": i}


def test_shards_of_hugging_face_are_its_own() -> None:
    datasets = pytest.importorskip("datasets")
    stream = datasets.IterableDataset.from_generator(
        examples, gen_kwargs={"names": ["a", "b", "c"]}
    )
    shards = hugging_face(stream)
    assert len(shards.shards) == 3
    assert all_of(shards) == list(stream)
    check_seeks(shards)
    from datasets.distributed import split_dataset_by_node

    with pytest.raises(ConfigError, match="before split_dataset_by_node"):
        hugging_face(split_dataset_by_node(stream, 0, 2))
    with pytest.raises(ConfigError, match=r"give a datasets\.IterableDataset"):
        hugging_face([1, 2])


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    for reader in (json_lines, webdataset):
        with pytest.raises(ConfigError, match=r"no file matches"):
            reader(f"{tmp_path}/*.none")
    pytest.importorskip("pyarrow")
    for reader in (parquet, arrow):
        with pytest.raises(ConfigError, match=r"no file matches"):
            reader(f"{tmp_path}/*.none")


def test_memory_of_fsspec_is_read_too() -> None:
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://data/a.jsonl", "wb") as file:
        file.write(b'{"x": 1}\n{"x": 2}\n')
    assert all_of(json_lines("memory://data/*.jsonl")) == [{"x": 1}, {"x": 2}]


def test_chunks_of_litdata_are_shards(tmp_path: Path) -> None:
    lit = pytest.importorskip("litdata", reason="needs litdata, which requires torchvision")
    writer = lit.streaming.Cache(str(tmp_path / "data"), chunk_size=7)
    for index, row in enumerate(ROWS):
        writer[index] = row
    writer.done()
    writer.merge()
    shards = litdata(lit.StreamingDataset(str(tmp_path / "data")))
    assert len(shards.shards) == 4
    assert all_of(shards) == ROWS
    check_seeks(shards)
    with pytest.raises(ConfigError, match="leave shuffle out there"):
        litdata(lit.StreamingDataset(str(tmp_path / "data"), shuffle=True))


def test_what_is_no_litdata_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"give a litdata\.StreamingDataset"):
        litdata([1])
