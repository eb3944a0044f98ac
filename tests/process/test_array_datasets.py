"""Data sets that are arrays: gathered batches are those that torch's loader makes of samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from swift_loader import ArrayDataset, SwiftLoader, Windows
from swift_loader.batch.arena import Arena
from swift_loader.worker.columns import gather_of

pytestmark = [pytest.mark.usefixtures("shared_zygote"), pytest.mark.timeout(60)]

N = 23
ROWS = np.arange(N * 6, dtype=np.float32).reshape(N, 2, 3)
KEYS = [3, 0, 22, 7]


def flat(value: Any) -> Any:
    """Types, dtypes, shapes and bits of a batch."""
    if isinstance(value, torch.Tensor):
        bits = value.contiguous().reshape(-1).view(torch.uint8)
        return (type(value), value.dtype, value.shape, bits.tolist())
    if isinstance(value, dict):
        return {key: flat(each) for key, each in value.items()}
    if isinstance(value, list):
        return [flat(each) for each in value]
    return value


def tensors(*dtypes: torch.dtype) -> TensorDataset:
    numbers = torch.arange(N * 6).reshape(N, 2, 3)
    return TensorDataset(*(numbers.to(dtype) for dtype in dtypes), torch.arange(N))


def memory_map(folder: Path) -> ArrayDataset:
    path = folder / "tokens.bin"
    np.arange(5 * N + 1, dtype=np.uint16).tofile(path)
    tokens = np.memmap(path, np.uint16, "r")
    return ArrayDataset(x=Windows(tokens, 5), y=Windows(tokens, 5, offset=1))


def hugging_face(kind: str, **columns: Any) -> Any:
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict(columns).with_format(kind)


GATHERED = {
    "tensors": lambda _: tensors(torch.float32, torch.int64, torch.uint8, torch.bool),
    "odd dtypes": lambda _: tensors(torch.bfloat16, torch.float16, torch.complex64, torch.uint16),
    "requires grad": lambda _: TensorDataset(torch.ones(N, 3, requires_grad=True)),
    "not contiguous": lambda _: TensorDataset(torch.arange(4 * N).reshape(4, N).T),
    "expanded": lambda _: TensorDataset(torch.ones(1, 3).expand(N, 3)),
    "subset": lambda _: Subset(tensors(torch.int32), [2 * i for i in range(10)] + [1, 3] * 7),
    "array": lambda _: ROWS,
    "strided array": lambda _: ROWS[::-1],
    "numbers": lambda _: ArrayDataset(np.arange(N, dtype=np.float32), torch.arange(N)),
    "one array": lambda _: ArrayDataset(ROWS),
    "by name": lambda _: ArrayDataset(x=ROWS, y=torch.arange(N), z=ROWS.astype(np.complex128)),
    "memory map": memory_map,
    "Hugging Face, numpy": lambda _: hugging_face("numpy", x=[[i, i] for i in range(N)],
                                                  y=[i / 2 for i in range(N)]),
    "Hugging Face, torch": lambda _: hugging_face("torch", x=[[i, i] for i in range(N)]),
}  # fmt: skip
NOT_GATHERED = {
    "sparse": lambda _: TensorDataset(torch.eye(N).to_sparse()),
    "strings": lambda _: hugging_face("numpy", x=["a"] * N, y=list(range(N))),
    "subset by tensors": lambda _: Subset(tensors(torch.int32), (torch.arange(N) % 2).nonzero()),
    "several shapes": lambda _: hugging_face("numpy", x=[[0] * (i % 2 + 1) for i in range(N)]),
}


@pytest.mark.parametrize("name", GATHERED)
def test_gathered_batch_is_the_one_that_torch_makes_of_the_samples(
    name: str, tmp_path: Path
) -> None:
    dataset = GATHERED[name](tmp_path)
    gather = gather_of(dataset)
    assert gather is not None
    expected = next(iter(DataLoader(dataset, sampler=KEYS, batch_size=len(KEYS))))
    for nbytes in (0, 1 << 16):
        assert flat(gather(KEYS, Arena(memoryview(bytearray(nbytes))))) == flat(expected)


@pytest.mark.parametrize(
    "name", ["tensors", "subset", "by name", "memory map", "Hugging Face, numpy", *NOT_GATHERED]
)
def test_batches_of_array_data_sets_are_torchs(name: str, tmp_path: Path) -> None:
    dataset = {**GATHERED, **NOT_GATHERED}[name](tmp_path)
    try:
        expected = [flat(batch) for batch in DataLoader(dataset, batch_size=5)]
    except (RuntimeError, NotImplementedError):
        assert name in NOT_GATHERED
        with pytest.raises(Exception, match=r"shape|sparse|size"):
            list(SwiftLoader(dataset, batch_size=5, num_workers=2).start())
        return
    with SwiftLoader(dataset, batch_size=5, num_workers=2) as loader:
        loader.start()
        assert [flat(batch) for batch in loader] == expected
        assert [flat(batch) for batch in loader] == expected


class Doubled(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        return tuple(2 * tensor for tensor in super().__getitem__(index))


def test_a_subclass_gives_its_own_samples() -> None:
    dataset = Doubled(torch.arange(N))
    assert gather_of(dataset) is None
    with SwiftLoader(dataset, batch_size=N, num_workers=1) as loader:
        loader.start()
        [[batch]] = list(loader)
    assert batch.tolist() == [2 * i for i in range(N)]


def doubled(sample: Any) -> Any:
    return [2 * part for part in sample]


def test_a_transform_is_called_with_each_sample() -> None:
    dataset = TensorDataset(torch.arange(N))
    with SwiftLoader(dataset, batch_size=N, num_workers=1, transform=doubled) as loader:
        loader.start()
        [[batch]] = list(loader)
    assert batch.tolist() == [2 * i for i in range(N)]


@pytest.mark.parametrize("kind", ["tensors", "arrays", "subset"])
def test_arrays_that_are_replaced_between_epochs_are_those_that_are_read(kind: str) -> None:
    before, after = torch.arange(N), torch.arange(N) + 100
    dataset: Any = TensorDataset(before)
    if kind == "arrays":
        dataset = ArrayDataset(before)
    elif kind == "subset":
        dataset = Subset(TensorDataset(before), range(N))
    with SwiftLoader(dataset, batch_size=N, num_workers=0) as loader:
        loader.start()
        [first] = list(loader)
        if kind == "tensors":
            dataset.tensors = (after,)
        elif kind == "arrays":
            dataset.columns = {0: after}
        else:
            dataset.dataset = TensorDataset(after)
        [second] = list(loader)
    values = [batch[0] if isinstance(batch, list) else batch for batch in (first, second)]
    assert [each.tolist() for each in values] == [before.tolist(), after.tolist()]


def test_an_index_out_of_range_names_the_sample() -> None:
    dataset = TensorDataset(torch.arange(N))
    with SwiftLoader(dataset, sampler=[1, 99], batch_size=2, num_workers=1) as loader:
        loader.start()
        with pytest.raises(IndexError, match="99"):
            list(loader)


def test_a_negative_index_counts_from_the_end_as_with_torch() -> None:
    dataset = TensorDataset(torch.arange(N))
    with SwiftLoader(dataset, sampler=[-1, 0], batch_size=2, num_workers=1) as loader:
        loader.start()
        [[batch]] = list(loader)
    assert batch.tolist() == [N - 1, 0]


def test_tensors_that_are_shared_are_read_anew_for_each_batch() -> None:
    values = torch.zeros(N).share_memory_()
    with SwiftLoader(
        TensorDataset(values), batch_size=N, num_workers=1, prefetch_epochs=0
    ) as loader:
        loader.start()
        [[before]] = list(loader)
        values += 1
        [[after]] = list(loader)
    assert (before.sum(), after.sum()) == (0, N)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ArrayDataset(), "takes arrays"),
        (lambda: ArrayDataset(ROWS, x=ROWS), "takes arrays"),
        (lambda: ArrayDataset([1, 2]), "0 is a list"),
        (lambda: ArrayDataset(ROWS, ROWS[1:]), "different lengths"),
        (lambda: Windows([1], 1), "a list"),
        (lambda: Windows(ROWS, 0), "at least 1"),
    ],
)
def test_arguments_that_do_not_fit_are_told(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_windows_are_the_rows_of_an_array() -> None:
    numbers = np.arange(20)
    for length, step, offset in [(1, 1, 0), (4, None, 0), (4, 3, 2), (20, None, 0), (21, 1, 0)]:
        windows = Windows(numbers, length, step=step, offset=offset)
        starts = range(offset, 20 - length + 1, step or length)
        assert [w.tolist() for w in windows] == [list(range(s, s + length)) for s in starts]
        assert windows.shape == (len(starts), length)
        with pytest.raises(IndexError):
            windows[len(windows)]
