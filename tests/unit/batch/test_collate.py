"""The default collate: torch's, into the slot, with dataclasses and None, and telling why not."""

from __future__ import annotations

import collections
import dataclasses
import enum
import importlib.util
from collections import OrderedDict, UserDict, UserList, defaultdict, namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import collate as torch_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from swift_loader.batch.arena import Arena
from swift_loader.batch.collate import collate, collates_as_torch
from swift_loader.errors import BatchError

Pair = namedtuple("Pair", "left right")
Level = enum.IntEnum("Level", "LOW HIGH")


class Frozen(Mapping[str, Any]):
    """A mapping that can't be changed, nor built from a dict."""

    def __init__(self, **values: Any) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Tagged(dict[str, Any]):
    tag = "none"


def tagged(**values: Any) -> Tagged:
    made = Tagged(values)
    made.tag = "mine"
    return made


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert not one.requires_grad
        assert torch.equal(one, other.detach())
    elif isinstance(one, Mapping):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, Sequence) and not isinstance(one, str | bytes):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other


class Marked(torch.Tensor):
    pass


AS_TORCH: dict[str, Callable[[int], Any]] = {
    "tensor": lambda n: torch.full((2, 3), n),
    "0-dim tensor": lambda n: torch.tensor(n),
    "empty tensor": lambda n: torch.empty(0, 3),
    "large tensor": lambda n: torch.full((100, 100), n, dtype=torch.float32),
    "large bfloat16": lambda n: torch.full((100, 100), n, dtype=torch.bfloat16),
    "strided tensor": lambda n: (torch.arange(200 * 200).view(200, 200) + n)[::2, ::3],
    "bool tensor": lambda n: torch.tensor([True, n > 1]),
    "mixed dtypes": lambda n: torch.ones(3, dtype=torch.float64 if n == 1 else torch.float32),
    "large mixed dtypes": lambda n: torch.ones(3000).to(torch.float64 if n == 1 else torch.float32),
    "requires grad": lambda n: torch.ones(3, requires_grad=True) * n,
    "large requires grad": lambda n: torch.ones(3000, requires_grad=True) * n,
    "subclass": lambda n: torch.ones(3).as_subclass(Marked),
    "large subclass": lambda n: torch.ones(3000).as_subclass(Marked),
    "array": lambda n: np.full((2, 3), n),
    "0-dim array": lambda n: np.array(n, np.int16),
    "empty array": lambda n: np.empty((0, 2)),
    "large array": lambda n: np.full((100, 100), n, np.float32),
    "Fortran array": lambda n: np.asfortranarray(np.arange(10_000).reshape(100, 100) * n),
    "mixed arrays": lambda n: np.ones(3, np.float64 if n == 1 else np.float32),
    "array, then tensor": lambda n: torch.ones(3) if n else np.ones(3, np.float32),
    "unsigned array": lambda n: np.full(3, n, np.uint16),
    "complex array": lambda n: np.full(3, n * 1j),
    "masked array": lambda n: np.ma.masked_array([n, 2], [0, 1]),
    "float32 scalar": lambda n: np.float32(n),
    "float64 scalar": lambda n: np.float64(n),
    "int8 scalar": lambda n: np.int8(n),
    "bool scalar": lambda n: np.bool_(n),
    "mixed scalars": lambda n: np.float64(n) if n == 1 else np.float32(n),
    "int": lambda n: n,
    "negative int": lambda n: -(2**62) - n,
    "float": lambda n: n / 3,
    "int then float": lambda n: n if n == 0 else n + 0.5,
    "float then int": lambda n: 0.5 if n == 0 else n,
    "bool": lambda n: n > 1,
    "bool then int": lambda n: True if n == 0 else n,
    "enum": lambda n: Level.HIGH,
    "complex": lambda n: {"x": [torch.tensor(n * 1j)]},
    "str": lambda n: str(n),
    "bytes": lambda n: b"x" * n,
    "numpy str": lambda n: np.str_(n),
    "dict": lambda n: {"a": n, "b": torch.ones(2)},
    "empty dict": lambda n: {},
    "dict with more keys": lambda n: {"a": n} if n == 0 else {"b": 1, "a": n},
    "dict of dict": lambda n: {"a": {"b": {"c": torch.ones(2), 3: [n]}}},
    "OrderedDict": lambda n: OrderedDict(z=n, a=n),
    "defaultdict": lambda n: defaultdict(list, a=n),
    "UserDict": lambda n: UserDict(a=torch.tensor(n)),
    "dict that holds more": lambda n: tagged(a=n),
    "frozen mapping": lambda n: Frozen(a=n, b=torch.ones(2)),
    "list": lambda n: [n, str(n), torch.tensor(n)],
    "empty list": lambda n: [],
    "tuple": lambda n: (torch.ones(3), n),
    "tuple of texts": lambda n: ("a", "b"),
    "named tuple": lambda n: Pair(torch.ones(3) * n, {"x": n}),
    "named tuple of texts": lambda n: Pair(f"a{n}", b"b"),
    "UserList": lambda n: UserList([n, torch.ones(2)]),
    "range": lambda n: range(3),
    "deque": lambda n: collections.deque([n, n]),
    "many small tensors": lambda n: [torch.full((16,), float(n + i)) for i in range(20)],
    "many odd tensors": lambda n: [torch.full((3,), n + i) for i in range(20)],
    "many empty ones": lambda n: {"boxes": torch.empty(0, 4), "points": torch.empty(0, 4)},
    "many, one large": lambda n: [torch.ones(1), torch.ones(2000), torch.ones(1)],
    "many, one otherwise": lambda n: [torch.ones(1), torch.ones(1).double(), torch.ones(2)],
    "many, one later otherwise": lambda n: [
        torch.ones(1),
        torch.ones(1, dtype=torch.float64 if n == 1 else torch.float32),
    ],
    "many that require grad": lambda n: [torch.ones(1, requires_grad=True) for _ in range(5)],
    "many of a subclass": lambda n: [torch.ones(1).as_subclass(Marked) for _ in range(5)],
}


@pytest.mark.parametrize("nb_samples", [1, 3])
@pytest.mark.parametrize("arena_bytes", [None, 0, 1000, 1 << 20], ids=str)
@pytest.mark.parametrize("name", AS_TORCH)
def test_collates_as_torch_does(name: str, arena_bytes: int | None, nb_samples: int) -> None:
    samples = [AS_TORCH[name](n) for n in range(nb_samples)]
    arena = None if arena_bytes is None else Arena(memoryview(bytearray(arena_bytes)))
    got = collate(samples, arena)
    assert_same(got, default_collate(samples))
    if isinstance(got, Tagged):
        assert got.tag == "mine"


NUMBERS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.booleans(), st.floats(width=32))


@settings(max_examples=100)
@given(st.lists(NUMBERS, min_size=1, max_size=5))
def test_any_mix_of_numbers_collates_as_torch_does(numbers: list[Any]) -> None:
    try:
        expected = default_collate(numbers)
    except (RuntimeError, OverflowError, TypeError, ValueError):
        with pytest.raises(BatchError):
            collate(numbers)
        return
    got = collate(numbers)
    assert got.dtype == expected.dtype
    assert torch.equal(got.nan_to_num(), expected.nan_to_num())


def test_what_torch_refuses_for_no_reason_collates() -> None:
    assert collate([np.uint64(2**63)]).dtype == torch.uint64
    assert collate([np.arange(3)[::-1]]).tolist() == [[2, 1, 0]]
    assert collate([np.arange(3, dtype=">i4")]).tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(
    "name", ["large tensor", "large bfloat16", "strided tensor", "large array"]
)
def test_large_results_lie_in_the_arena(name: str) -> None:
    arena = Arena(memoryview(bytearray(1 << 20)))
    got = collate([AS_TORCH[name](n) for n in range(3)], arena)
    assert arena.offset_of(got.data_ptr(), got.nbytes) is not None


def test_an_array_over_a_file_goes_into_the_arena(tmp_path: Any) -> None:
    tokens = np.memmap(tmp_path / "tokens", np.int64, "w+", shape=(4000,))
    tokens[:] = np.arange(4000)
    arena = Arena(memoryview(bytearray(1 << 20)))
    got = collate([{"x": tokens[n : n + 1000]} for n in range(3)], arena)["x"]
    assert got.tolist() == [list(range(n, n + 1000)) for n in range(3)]
    assert arena.offset_of(got.data_ptr(), got.nbytes) == 0


def test_samples_are_never_written_to() -> None:
    sample = {"x": torch.zeros(5000)}
    got = collate([sample, sample], Arena(memoryview(bytearray(1 << 20))))
    got["x"].fill_(1)
    assert sample["x"].sum() == 0
    assert list(sample) == ["x"]


# Beyond torch.


@dataclasses.dataclass
class Sample:
    image: torch.Tensor
    label: int
    extra: dict[str, Any] | None = None
    name: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Strict:
    value: float
    derived: float = dataclasses.field(init=False, default=0.0)

    def __post_init__(self) -> None:
        assert isinstance(self.value, float)


def test_dataclasses_become_dataclasses_of_batches() -> None:
    got = collate([Sample(torch.full((2,), n), n, {"k": n}, str(n)) for n in range(3)])
    assert type(got) is Sample
    assert got.image.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert got.label.tolist() == [0, 1, 2]
    assert got.extra["k"].tolist() == [0, 1, 2]
    assert got.name == ["0", "1", "2"]


def test_a_dataclass_that_checks_one_sample_is_not_asked_about_a_batch() -> None:
    got = collate([Strict(1.0), Strict(2.0)])
    assert got.value.tolist() == [1, 2]
    assert got.derived.tolist() == [0, 0]


def test_none_in_every_sample_stays_none() -> None:
    assert collate([(None, 1), (None, 2)])[0] is None
    assert collate([None, None]) is None
    assert collate([Sample(torch.ones(1), 0), Sample(torch.ones(1), 1)]).extra is None


class Box:
    def __init__(self, value: Any) -> None:
        self.value = value


@pytest.fixture
def registered() -> Iterator[None]:
    """A type of the user's and a new way with strings, in torch's registry."""
    before = dict(default_collate_fn_map)

    def boxes(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return Box(torch_collate([box.value for box in batch], collate_fn_map=collate_fn_map))

    default_collate_fn_map[Box] = boxes
    default_collate_fn_map[str] = lambda batch, *, collate_fn_map=None: "+".join(batch)
    yield
    default_collate_fn_map.clear()
    default_collate_fn_map.update(before)


def test_types_registered_with_torch_are_collated_as_registered(registered: None) -> None:
    arena = Arena(memoryview(bytearray(1 << 20)))
    samples = [{"box": Box({"x": torch.full((5000,), n)}), "name": "ab", "n": n} for n in range(2)]
    got = collate(samples, arena)
    assert type(got["box"]) is Box
    inner = got["box"].value["x"]
    assert torch.equal(inner, torch.stack([torch.full((5000,), n) for n in range(2)]))
    assert arena.offset_of(inner.data_ptr(), inner.nbytes) is not None
    assert got["name"] == "ab+ab"
    assert got["n"].tolist() == [0, 1]


def test_what_was_registered_before_the_import_is_not_taken_for_torchs(registered: None) -> None:
    spec = importlib.util.find_spec("swift_loader.batch.collate")
    assert spec is not None
    assert spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    assert fresh.collate([("a", {"b": "b"})] * 2) == ["a+a", {"b": "b+b"}]


def test_torchs_registry_is_known_as_torch_makes_it() -> None:
    assert collates_as_torch()


def test_a_mismatch_inside_a_registered_type_is_named(registered: None) -> None:
    with pytest.raises(BatchError, match=r"field \['box'\]\['x'\].*\(2,\) in sample 8"):
        collate([{"box": Box({"x": torch.ones(n)})} for n in (1, 2)], indices=[7, 8])


# Why not.

CUDA = pytest.param(
    lambda n: {"x": torch.ones(3, device="cuda")},
    r"\['x'\].*CUDA tensor of shape \(3,\).*must not touch CUDA",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ],
)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (lambda n: {"image": [torch.ones(3, 4 + n // 2)]},
         r"field \['image'\]\[0\] .*shapes differ: \(3, 4\) in samples 70, 71; "
         r"\(3, 5\) in sample 72. Pad or crop"),
        (lambda n: Sample(torch.ones(n), n), r"field \.image .*\(0,\) in sample 70"),
        (lambda n: Pair(0, torch.ones(5000, n)), r"field \.right .*\(5000, 0\) in sample 70"),
        (lambda n: (1, np.ones(2 + n)), r"field \[1\] .*shapes differ: \(2,\) in sample 70"),
        (lambda n: [[torch.ones(1), torch.ones(1 + n)]], r"field \[0\]\[1\] .*shapes differ"),
        (lambda n: {"a": 1, "b" if n else "c": 1},
         r"keys differ: \['a', 'c'\] in sample 70; \['a', 'b'\] in samples 71, 72"),
        (lambda n: {"x": list(range(n))}, r"\['x'\].*lengths differ: length 0 in sample 70"),
        (lambda n: {"x": None if n == 1 else 1.5},
         r"types differ: float in samples 70, 72; NoneType in sample 71"),
        (lambda n: {"x": 1.5 if n == 1 else None}, r"types differ: NoneType in samples 70, 72"),
        (lambda n: np.ones(1) if n else torch.ones(1), "types differ: Tensor in sample 70"),
        (lambda n: {"x": torch.ones(1) if n else None}, "types differ"),
        (lambda n: [] if n else {"x": 1}, "types differ: dict in sample 70"),
        (lambda n: 1 if n else [1], "types differ: list in sample 70"),
        (lambda n: {"x": Box(1)}, r"field \['x'\].*test_collate.Box is no type that collates"),
        (lambda n: np.array(["a"]), r"no dtype like numpy's <U1"),
        (lambda n: np.zeros(2, [("a", int)]), "no dtype like numpy's"),
        (lambda n: np.array(["2020"], "M8[D]"), "no dtype like numpy's"),
        (lambda n: pack_sequence([torch.ones(2)]), "PackedSequence is no type that collates"),
        (lambda n: np.datetime64("2020"), "numpy.datetime64 is no type that collates"),
        (lambda n: {"x": torch.eye(3).to_sparse()}, r"sparse_coo tensors have no common stack"),
        (lambda n: torch.nested.nested_tensor([torch.ones(1)]), "nested tensors have no common"),
        (lambda n: torch.empty(3, device="meta"), "META tensor"),
        (lambda n: 2**70, "can't be collated"),
        CUDA,
    ],
)  # fmt: skip
def test_says_what_does_not_fit_and_where(sample: Callable[[int], Any], words: str) -> None:
    samples = [sample(n) for n in range(3)]
    for arena in (None, Arena(memoryview(bytearray(1 << 20)))):
        with pytest.raises(BatchError, match=words) as caught:
            collate(samples, arena, indices=np.arange(70, 73))
        assert str(caught.value).endswith(".")


def test_without_indices_places_in_the_batch_are_named() -> None:
    with pytest.raises(BatchError, match=r"\(1,\) in place 0; \(2,\) in places 1, 2"):
        collate([torch.ones(1), torch.ones(2), torch.ones(2)])


def test_the_error_stays_short_for_large_batches() -> None:
    with pytest.raises(
        BatchError, match=r"\(1,\) in samples 0, 1, 2, 3, 4, \.\.\.; \(2,\)"
    ) as caught:
        collate([torch.ones(1 + n // 500) for n in range(1000)], indices=range(1000))
    assert len(str(caught.value)) < 300


def test_no_samples_are_refused() -> None:
    with pytest.raises(BatchError, match="no samples"):
        collate([])


def test_errors_of_the_users_own_code_pass_unchanged() -> None:
    class Breaking(Frozen):
        def __getitem__(self, key: str) -> Any:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        collate([Breaking(a=1)])
