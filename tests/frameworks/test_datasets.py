"""Data sets that people bring: Hugging Face, webdataset, HDF5, memory maps; torch's samplers."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from swift_loader import SwiftLoader

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(100)]

N = 101


def all_of(loader: SwiftLoader, name: Any) -> list[int]:
    """Field `name` of all batches of an epoch."""
    return [value for batch in loader for value in batch[name].tolist()]


def test_hugging_face_map_data_set_gives_what_torchs_loader_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    datasets = pytest.importorskip("datasets", reason="needs Hugging Face datasets")
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)  # no thread of a progress bar
    data = datasets.Dataset.from_dict({"x": list(range(N)), "y": [[i, i + 1] for i in range(N)]})
    data = data.with_format("torch")
    expected = list(DataLoader(data, batch_size=8))
    with SwiftLoader.from_dataset(data, 8, worker_per_consumer=2) as loader:
        found = list(loader)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_hugging_face_stream_gives_each_sample_once(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="needs Hugging Face datasets")
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)  # no thread of a progress bar
    data = datasets.Dataset.from_dict({"x": list(range(N))}).to_iterable_dataset(num_shards=4)
    with SwiftLoader.from_dataset(data.with_format("torch"), 8, worker_per_consumer=2) as loader:
        for _ in range(2):
            assert sorted(all_of(loader, "x")) == list(range(N))


def test_webdataset_shards_give_each_sample_once(tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset", reason="needs webdataset")
    for shard in range(4):
        with tarfile.open(tmp_path / f"s-{shard}.tar", "w") as tar:
            for i in range(shard, N, 4):
                data = json.dumps({"i": i}).encode()
                member = tarfile.TarInfo(f"{i:06d}.json")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    data = wds.WebDataset(str(tmp_path / "s-{0..3}.tar"), shardshuffle=False, empty_check=False)
    data = data.decode().map(index_in)
    with SwiftLoader.from_dataset(data, 8, worker_per_consumer=2) as loader:
        assert sorted(i for batch in loader for i in batch.tolist()) == list(range(N))


def index_in(sample: dict[str, Any]) -> int:
    index: int = sample["json"]["i"]
    return index


class Hdf5:
    """Opens its file where it is built: in each worker."""

    def __init__(self, path: str) -> None:
        import h5py

        self.rows = h5py.File(path, "r")["rows"]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> np.ndarray:
        row: np.ndarray = self.rows[i]
        return row


def test_hdf5_file_is_opened_in_the_workers(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="needs h5py")
    rows = np.arange(N * 3, dtype=np.float32).reshape(N, 3)
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["rows"] = rows
    kwargs = {"path": str(tmp_path / "rows.h5")}
    with SwiftLoader(Hdf5, kwargs, 8, worker_per_consumer=2) as loader:
        for _ in range(2):
            assert torch.equal(torch.cat(list(loader)), torch.from_numpy(rows))


def test_memory_map_is_mapped_by_the_workers_not_copied(tmp_path: Path) -> None:
    rows = np.lib.format.open_memmap(tmp_path / "rows.npy", "w+", np.int64, (N, 3))
    rows[:] = np.arange(N * 3).reshape(N, 3)
    rows.flush()
    with SwiftLoader.from_dataset(np.load(tmp_path / "rows.npy", mmap_mode="r"), 8) as loader:
        rows[5] = -1  # another process's write to the file is seen through a map of it
        rows.flush()
        found = torch.cat(list(loader))
    assert torch.equal(found, torch.from_numpy(np.asarray(rows)))


def plain(n: int = N) -> TensorDataset:
    return TensorDataset(torch.arange(n))


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 8},
        {"batch_size": 8, "drop_last": True, "num_workers": 2},
        {"batch_size": None},
        {"batch_sampler": BatchSampler(range(N - 1, -1, -1), 7, drop_last=False)},
        {"batch_size": 8, "sampler": list(range(0, N, 2))},
        {"batch_size": 8, "sampler": DistributedSampler(plain(), 2, 1, shuffle=True, seed=3)},
        {"batch_size": 8, "collate_fn": len},
    ],
    ids=["plain", "drop", "unbatched", "batch_sampler", "sampler", "distributed", "collate_fn"],
)
def test_from_dataloader_gives_the_same_batches(arguments: dict[str, Any]) -> None:
    theirs = DataLoader(plain(), **arguments)
    expected = [batch[0] if isinstance(batch, list) else batch for batch in theirs]
    with SwiftLoader.from_dataloader(theirs) as loader:
        found = [batch[0] if isinstance(batch, list) else batch for batch in loader]
    assert len(found) == len(expected)
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b))
               for a, b in zip(found, expected, strict=True))  # fmt: skip


def test_from_dataloader_takes_an_order_of_the_users() -> None:
    weights = torch.zeros(N)
    weights[[3, 7]] = 1.0
    sampler = WeightedRandomSampler(weights.tolist(), 64)
    with SwiftLoader.from_dataloader(DataLoader(plain(), 8, sampler=sampler)) as loader:
        found = all_of(loader, 0)
    assert len(found) == 64
    assert set(found) == {3, 7}


def test_from_dataloader_shuffles_in_an_order_of_its_own() -> None:
    theirs = DataLoader(plain(), 8, shuffle=True, generator=torch.Generator().manual_seed(5))
    with SwiftLoader.from_dataloader(theirs, worker_per_consumer=2) as loader:
        assert loader.seed == 5
        first, second = all_of(loader, 0), all_of(loader, 0)
    assert sorted(first) == sorted(second) == list(range(N))
    assert first != second


def test_from_dataloader_takes_a_stream() -> None:
    theirs = DataLoader(Stream(), batch_size=8)
    with SwiftLoader.from_dataloader(theirs, worker_per_consumer=2) as loader:
        assert sorted(i for batch in loader for i in batch.tolist()) == list(range(N))


class Stream(torch.utils.data.IterableDataset[int]):
    """Shares its items out as torch's documentation says."""

    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return iter(range(first, N, step))


def test_from_dataloader_refuses_what_is_none() -> None:
    with pytest.raises(ValueError, match=r"give a torch\.utils\.data\.DataLoader"):
        SwiftLoader.from_dataloader(plain())
