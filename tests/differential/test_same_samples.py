"""Each kind of sample, and of error, through both loaders: the same batches of the same types, or a
difference that the documentation names.

All kinds go through one loader of each: a batch a kind.
"""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from swift_loader import BatchError, SwiftLoader, WorkerError
from tests.differential import samples
from tests.differential.loaders import through_ours, through_torch
from tests.differential.outcome import Raised, frozen, raised

pytestmark = [pytest.mark.usefixtures("shared_zygote"), pytest.mark.timeout(120)]

EACH = 4
#: Samples that no loader can make a batch of; this one's error is always a `BatchError`.
UNFIT = [
    "uneven tensors",
    "uneven lists",
    "uneven keys",
    "set",
    "function",
    "numpy text",
    "numpy objects",
    "complex number",
    "sparse",
]
#: Samples that only this loader collates, and what torch raises.
MORE = {
    "none": TypeError,
    "dataclass": TypeError,
    "requires grad": RuntimeError,
    "mixed dtypes": TypeError,
}
#: Errors that torch can't raise again as they were, and what comes in their place.
NOT_AGAIN = {"UnicodeDecodeError": RuntimeError, "two arguments": samples.TwoWords}


def by_kind(dataset: samples.Kinds, found: Any) -> dict[str, Any]:
    """The batch of each kind."""
    return dict(zip(dataset.kinds, found.batches, strict=True))


@pytest.mark.parametrize("workers", [1, 3])
def test_each_kind_of_sample_makes_torchs_batch_or_an_error(workers: int) -> None:
    dataset = samples.Kinds(["pair", *(k for k in samples.SAMPLES if k != "pair")], EACH)
    options = {"batch_size": EACH, "workers": workers}
    theirs = by_kind(dataset, through_torch(dataset, **options)[0])
    ours = by_kind(dataset, through_ours(dataset, **options)[0])
    for kind in UNFIT:
        assert isinstance(theirs.pop(kind), Raised), kind
        assert ours.pop(kind) == Raised(BatchError), kind
    for kind, error in MORE.items():
        assert theirs.pop(kind) == Raised(error), kind
        assert not isinstance(ours.pop(kind), Raised), kind
    assert ours == theirs


@pytest.mark.parametrize("workers", [1, 3])
def test_errors_of_samples_keep_their_class_and_the_batches_after_them_come(workers: int) -> None:
    dataset = samples.Kinds(
        ["pair", *(kind for kind in samples.ERRORS if kind != "StopIteration"), "dict"], EACH
    )
    options = {"batch_size": EACH, "workers": workers}
    theirs = by_kind(dataset, through_torch(dataset, **options)[0])
    ours = by_kind(dataset, through_ours(dataset, **options)[0])
    for kind in samples.ERRORS.keys() & ours.keys():
        original = samples.ERRORS[kind]()
        assert theirs.pop(kind) == Raised(NOT_AGAIN.get(kind, type(original))), kind
        got = ours.pop(kind)
        assert (got, got.words) == (raised(original), raised(original).words)
    assert ours == theirs


def test_stop_iteration_of_a_sample_does_not_pass_for_the_end_of_the_epoch() -> None:
    dataset = samples.Kinds(["pair", "StopIteration", "dict"], EACH)
    theirs = through_torch(dataset, batch_size=EACH)[0]
    ours = through_ours(dataset, batch_size=EACH)[0]
    assert len(theirs.batches) == 1
    assert [type(batch) for batch in ours.batches] == [tuple, Raised, tuple]
    assert ours.batches[1] == Raised(WorkerError)


def test_samples_without_batches_are_torchs() -> None:
    kinds = [kind for kind in samples.SAMPLES if kind not in (*UNFIT, *MORE)]
    dataset = samples.Kinds(kinds, 1)
    theirs = by_kind(dataset, through_torch(dataset, batch_size=None)[0])
    ours = by_kind(dataset, through_ours(dataset, batch_size=None)[0])
    assert ours == theirs


@pytest.mark.parametrize("collate_fn", [samples.listed, samples.counted])
def test_collate_functions_get_what_torchs_get(collate_fn: Any) -> None:
    dataset = samples.MapStyle("deep")
    options = {"batch_size": 5, "collate_fn": collate_fn}
    assert through_ours(dataset, **options) == through_torch(dataset, **options)


@pytest.mark.parametrize("batch_size", [5, None])
def test_getitems_is_used_where_torch_uses_it(batch_size: int | None) -> None:
    options = {"batch_size": batch_size}
    assert through_ours(samples.Bulk(), **options) == through_torch(samples.Bulk(), **options)


def test_batches_in_inference_mode_are_inference_tensors_as_torchs() -> None:
    dataset = TensorDataset(torch.arange(8.0))
    with torch.inference_mode():
        theirs = [batch[0] for batch in DataLoader(dataset, batch_size=4, num_workers=1)]
        with SwiftLoader(dataset, batch_size=4, num_workers=1) as loader:
            ours = [batch[0] for batch in loader]
    assert [batch.tolist() for batch in ours] == [batch.tolist() for batch in theirs]
    assert [batch.is_inference() for batch in ours] == [batch.is_inference() for batch in theirs]


class Views:
    """Samples of a tensor and a view of it."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        base = torch.zeros(3)
        return base, base[1:]


def test_tensors_that_share_memory_have_each_their_own_here() -> None:
    options: Any = {"batch_size": 2, "num_workers": 1, "collate_fn": samples.listed}
    [(base, view), _] = next(iter(DataLoader(Views(), multiprocessing_context="fork", **options)))  # type: ignore[arg-type]
    base.add_(1)
    assert view.tolist() == [1, 1]
    with SwiftLoader(Views(), validate=False, **options) as loader:
        [(base, view), _] = next(iter(loader))
    base.add_(1)
    assert view.tolist() == [0, 0]


class OddTensors:
    """Samples that torch's workers send as something else."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> torch.Tensor:
        if i == 0:
            return torch.tensor([1j]).conj()
        if i == 1:
            named = torch.ones(1)
            named.name_of = "n"  # type: ignore[attr-defined]
            return named
        if i == 2:
            return torch.quantize_per_tensor(torch.ones(1), 0.5, 0, torch.qint8)
        return torch.empty(1, device="meta")


@pytest.mark.filterwarnings("ignore")  # torch's, of quantized tensors
def test_tensors_that_change_on_torchs_way_arrive_as_they_are_or_are_an_error() -> None:
    options: Any = {"batch_size": None, "num_workers": 1}
    theirs = list(DataLoader(OddTensors(), multiprocessing_context="fork", **options))  # type: ignore[arg-type]
    assert theirs[0].tolist() == [1j]
    assert not hasattr(theirs[1], "name_of")
    with pytest.raises(RuntimeError):
        theirs[2].dequantize()
    assert theirs[3].is_meta
    with SwiftLoader(OddTensors(), validate=False, **options) as loader:
        ours = iter(loader)
        assert next(ours).tolist() == [-1j]
        assert next(ours).name_of == "n"
        for words in ("dequantize", "has no values"):
            with pytest.raises(BatchError, match=words):
                next(ours)


class Counts:
    """A collate function that counts its batches."""

    def __init__(self) -> None:
        self.batches = 0

    def __call__(self, _: list[Any]) -> int:
        self.batches += 1
        return self.batches


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_what_is_changed_in_a_worker_stays_for_all_epochs(persistent_workers: bool) -> None:
    theirs: Any = DataLoader(
        samples.MapStyle(n=3), 1, num_workers=1, multiprocessing_context="fork",
        collate_fn=Counts(), persistent_workers=persistent_workers,
    )  # fmt: skip
    last = 6 if persistent_workers else 3
    assert [max(theirs) for _ in range(2)] == [3, last]
    with SwiftLoader.from_dataloader(theirs) as loader:
        assert [max(loader) for _ in range(2)] == [3, 6]


class MakesAClass:
    """Samples of a class that only the worker has; `named`: where a module should have it."""

    def __init__(self, named: bool = False) -> None:
        self.named = named
        self.kind: Any = None

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Any:
        if self.kind is None:
            self.kind = collections.namedtuple("Made", "x", module=__name__)
            if self.named:
                globals()["Made"] = self.kind
        return self.kind(i)


def test_objects_of_a_class_that_a_worker_makes_arrive_here_only() -> None:
    options: Any = {"batch_size": 2, "num_workers": 1, "collate_fn": samples.listed}
    theirs: Any = DataLoader(MakesAClass(), multiprocessing_context="fork", timeout=1, **options)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="timed out"):
        next(iter(theirs))
    with SwiftLoader(MakesAClass(), **options) as loader:
        first, second = loader
    assert [one.x for one in first + second] == [0, 1, 2, 3]
    assert type(first[0]) is type(first[1])
    assert type(first[0]) is not type(second[0])
    options["validate"] = False
    with SwiftLoader(MakesAClass(named=True), **options) as loader:
        with pytest.raises(BatchError, match=r"can't be rebuilt.*Made.*top level of a module"):
            next(iter(loader))


def test_frozen_tells_types_apart() -> None:
    assert frozen([1]) != frozen((1,))
    assert frozen(1) != frozen(True)
