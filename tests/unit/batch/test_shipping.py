"""Carrying the user's objects to a worker: what arrives, what is shared, and what is named."""

from __future__ import annotations

import abc
import collections
import copy
import dataclasses
import datetime
import enum
import functools
import gc
import io
import math
import mmap
import operator
import os
import pickle
import queue
import struct
import sys
import threading
import typing
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar
from unittest.mock import patch

import numpy as np
import pytest
import torch

from swift_loader.batch import identity, shipping
from swift_loader.batch.arena import Arena
from swift_loader.batch.codec import decode, encode
from swift_loader.batch.large import hold
from swift_loader.batch.shipping import Payload, hold_large, pack, unpack
from swift_loader.errors import ShippingError
from tests.unit.batch import registering


def region_of(payload: Payload) -> mmap.mmap:
    region = mmap.mmap(-1, payload.nbytes)
    view = memoryview(region)
    payload.write(view)
    view.release()
    return region


def shipped(**parts: Any) -> dict[str, Any]:
    """What a worker gets, which knows none of the classes that travel by value."""
    region = region_of(pack(parts))
    with patch.object(identity, "_class_of", {}), patch.object(identity, "_token_of", {}):
        parts = unpack(memoryview(region))
        learned = dict(identity._token_of)
    identity._token_of.update(learned)  # as the worker has it that encodes
    return parts


def by_value(make: Callable[[], Any]) -> Any:
    """What a function of local classes returns, as a worker sees it."""
    return shipped(it=make())["it"]


# By reference.


@dataclasses.dataclass
class Importable:
    x: int


def importable(x: int) -> int:
    return x + 1


def test_what_can_be_imported_goes_by_reference() -> None:
    partial = functools.partial(importable, 1)
    got = shipped(
        a=Importable, b=importable, c=Importable(3), d=math.sin, e=partial, f=np, g=torch.nn.ReLU
    )
    assert got["a"] is Importable
    assert got["b"] is importable
    assert type(got["c"]) is Importable
    assert got["d"] is math.sin
    assert got["e"]() == 2
    assert got["f"] is np


def test_plain_values_arrive() -> None:
    kwargs = {"paths": [Path("/a/b")], "none": None, "n": 2**70, "text": "ü", "set": {1, 2}}
    assert shipped(kwargs=kwargs)["kwargs"] == kwargs


def test_nothing_at_all_arrives() -> None:
    assert shipped() == {}


# Arrays.


def test_arrays_and_tensors_are_views_over_the_region() -> None:
    array, tensor = np.arange(1000.0), torch.arange(50, dtype=torch.bfloat16)
    sparse = torch.eye(4).to_sparse()
    payload = pack({"a": [array], "t": {"x": tensor}, "s": sparse})
    region = region_of(payload)
    got = unpack(memoryview(region))
    whole = np.frombuffer(region, np.uint8)
    assert np.array_equal(got["a"][0], array)
    assert torch.equal(got["t"]["x"], tensor)
    assert torch.equal(got["s"].to_dense(), torch.eye(4))
    assert np.shares_memory(got["a"][0], whole)
    assert np.shares_memory(got["t"]["x"].view(torch.int16).numpy(), whole)
    got["a"][0][0] = 7  # writable, as it was
    assert array[0] == 0
    assert payload.nbytes < array.nbytes + tensor.nbytes + 4096


def test_one_array_in_two_places_is_shipped_once_and_stays_one() -> None:
    array = np.arange(100_000)
    payload = pack({"kwargs": {"a": array, "again": array}, "f": lambda: array})
    assert payload.nbytes < array.nbytes + 8192
    got = unpack(memoryview(region_of(payload)))
    assert got["kwargs"]["a"] is got["kwargs"]["again"]
    assert np.shares_memory(got["f"](), got["kwargs"]["a"])


@pytest.mark.parametrize("view", [lambda a: a.T, lambda a: a[::2, ::-1], lambda a: a[:0]])
def test_views_of_arrays_arrive_as_they_look(view: Callable[[Any], Any]) -> None:
    array = view(np.arange(12).reshape(3, 4))
    assert np.array_equal(shipped(a=array)["a"], array)
    tensor = torch.from_numpy(array.copy()).t()[::2][:1]
    assert torch.equal(shipped(t=tensor)["t"], tensor)


def _views_of_tensors() -> dict[str, Any]:
    base = torch.arange(24, dtype=torch.bfloat16).reshape(4, 6)
    return {"base": base, "part": base[1:, :2], "column": base[:, 3], "turned": base.t()[2:]}


def _views_of_arrays() -> dict[str, Any]:
    base = np.arange(24.0).reshape(4, 6)
    return {"part": base[1:, ::-2], "tensor": torch.from_numpy(base), "bytes": base.view(np.uint8)}


def _equal_views() -> dict[str, Any]:
    base = torch.arange(24, dtype=torch.int16).reshape(4, 6)
    return {"a": base[:, ::2], "b": base[:, ::2], "c": base[0, ::3].expand(2, -1)}


def _chain_of_views() -> dict[str, Any]:
    base = torch.arange(100, dtype=torch.int32)[1:]
    return {"a": base[:40], "b": base[30:70], "c": base[60::3], "alone": base[80:81]}


@pytest.mark.parametrize(
    "make", [_views_of_tensors, _views_of_arrays, _equal_views, _chain_of_views]
)
def test_what_shares_memory_shares_it_where_it_arrives(make: Callable[[], dict[str, Any]]) -> None:
    there = by_value(make)
    here = make()
    for changed in here:
        for each in (here, there):
            each[changed][-1:] *= 2
        for name, one in here.items():
            assert type(there[name]) is type(one)
            assert there[name].dtype == one.dtype
            assert there[name].tolist() == one.tolist()


def test_what_is_expanded_stays_so_and_is_shipped_once() -> None:
    spread = torch.arange(3.0).expand(1_000_000, 3)
    windows = np.lib.stride_tricks.sliding_window_view(np.arange(1000), 500)
    payload = pack({"it": [spread, windows]})
    assert payload.nbytes < 8 * 1000 + 4096
    for views in ([spread, windows], [spread, windows, spread[:, 1:], windows[3:, ::2]]):
        got = shipped(it=views)["it"]
        assert [one.shape for one in got] == [one.shape for one in views]
        assert got[0][5].tolist() == [0, 1, 2]
        got[0][5, 1] = 7
        assert got[0][999, 1] == 7
        assert np.array_equal(got[1], windows)
        if len(got) > 2:
            assert got[2][3, 0] == 7
            assert np.array_equal(got[3], views[3])


class Computed:
    """What it holds is made while it is pickled, and shares memory."""

    def __init__(self, rows: Any = None, part: Any = None) -> None:
        self.rows, self.part = rows, part

    def __reduce__(self) -> Any:
        rows = np.arange(100_000)
        return Computed, (rows, rows[10:])


def test_what_is_made_while_it_is_pickled_arrives_whole() -> None:
    for _ in range(3):
        payload = pack({"it": [Computed(), Computed()]})
        filler = [np.full(100_000, -1) for _ in range(8)]  # in memory that was freed
        got = unpack(memoryview(region_of(payload)))["it"]
        assert len(filler) == 8
        for one in got:
            assert np.array_equal(one.rows, np.arange(100_000))
            assert np.array_equal(one.part, one.rows[10:])


def test_views_that_lie_between_each_other_do_not_take_along_what_is_around() -> None:
    base = torch.zeros(1000, 1000)
    columns = pack({"it": [base[:, 0], base[:, 1]]})
    assert columns.nbytes < 2 * 4000 + 4096
    rows = pack({"it": [base[:10], base[5:15], base[500:510]]})
    assert rows.nbytes < 25 * 4000 + 4096


def test_views_inside_large_bytes_are_views_of_them() -> None:
    data = bytes(range(256)) * 40_000
    parts = {"data": data, "view": np.frombuffer(data, np.int32, offset=8)}
    payload = pack({"dataset_kwargs": parts})
    assert payload.nbytes < len(data) + 4096
    got = unpack(memoryview(region_of(payload)))["dataset_kwargs"]
    assert got["data"] == data
    assert np.array_equal(got["view"], parts["view"])


def test_arrays_that_are_read_only_stay_so() -> None:
    array = np.arange(5)
    array.flags.writeable = False
    views = {"array": array, "part": array[1::2], "spread": np.broadcast_to(np.arange(3), (2, 3))}
    got = shipped(it={**views, "open": np.arange(3)})["it"]
    assert [one.flags.writeable for one in got.values()] == [False, False, False, True]
    assert all(np.array_equal(got[name], one) for name, one in views.items())


def test_storages_arrive_and_are_shared_with_their_tensors() -> None:
    tensor = torch.arange(3, dtype=torch.int16)
    got = shipped(it=[tensor.untyped_storage(), tensor, torch.UntypedStorage(0)])["it"]
    assert got[0].tolist() == [0, 0, 1, 0, 2, 0]
    got[1][0] = 7
    assert got[0][0] == 7
    assert got[2].nbytes() == 0


class Scaled(torch.Tensor):
    """A tensor of a class of its own."""


def test_tensors_that_require_grad_do_so_where_they_arrive() -> None:
    own = torch.ones(2).as_subclass(Scaled)
    own.unit = "m"  # type: ignore[attr-defined]
    tensors = {
        "plain": torch.ones(2),
        "sparse": torch.eye(2).to_sparse(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "own": own,
        "complex": torch.ones(2, dtype=torch.complex64),
        "empty": torch.ones(0),
        "strided": torch.ones(4, 4)[::2],
        "shared": torch.ones(2).share_memory_(),
    }
    for wanted in (True, False):
        got = shipped(it={name: one.requires_grad_(wanted) for name, one in tensors.items()})["it"]
        assert {name: one.requires_grad for name, one in got.items()} == dict.fromkeys(
            tensors, wanted
        )
    assert (type(got["own"]), got["own"].unit) == (Scaled, "m")
    computed = shipped(it=2 * torch.ones(2, requires_grad=True))["it"]
    assert computed.requires_grad  # as in a forked process; its history stays at home
    assert computed.tolist() == [2, 2]


def test_modules_with_parameters_arrive() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).eval()
    got = shipped(model=model)["model"]
    x = torch.randn(2, 3)
    assert torch.equal(got(x), model(x))
    assert all(parameter.requires_grad for parameter in got.parameters())


# Arrays over files.


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    path = tmp_path / "numbers"
    np.arange(10_000, dtype=np.int32).tofile(path)
    return path


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_a_memmap_travels_as_its_file_name(numbers: Path, mode: Any) -> None:
    mapped = np.memmap(numbers, np.int32, mode, offset=400, shape=(9000,))
    payload = pack({"m": mapped})
    assert payload.nbytes < 4096
    got = unpack(memoryview(region_of(payload)))["m"]
    assert type(got) is np.memmap
    assert (got.mode, got.offset, got.dtype) == (mode, 400, np.int32)
    assert Path(got.filename) == numbers
    assert np.array_equal(got, mapped)
    assert got.flags.writeable == mapped.flags.writeable


def test_a_memmap_just_made_is_opened_and_not_emptied(tmp_path: Path) -> None:
    made = np.memmap(tmp_path / "new", np.float64, "w+", shape=(10, 3))
    made[:] = 5
    got = shipped(m=made)["m"]
    assert got.mode == "r+"
    assert np.all(got == 5)
    got[0, 0] = 6
    assert made[0, 0] == 6


@pytest.mark.parametrize(
    "view",
    [
        lambda m: m[5000:5010],
        lambda m: m[::-3],
        lambda m: m.reshape(90, 90)[10:20, ::7].T,
        lambda m: m.reshape(90, 90)[::-1, ::-1],
        lambda m: np.asarray(m)[100:],
        lambda m: m.view(np.uint8)[1:],
        lambda m: m[7],
        lambda m: m[:0],
    ],
)
def test_views_of_a_memmap_arrive_as_they_look(numbers: Path, view: Callable[[Any], Any]) -> None:
    mapped = view(np.memmap(numbers, np.int32, "r", offset=4096 + 4, shape=(8100,)))
    got = shipped(m=mapped)["m"]
    assert type(got) is type(mapped)
    assert np.array_equal(got, mapped)


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_a_tensor_over_a_memmap_travels_as_the_file_too(numbers: Path, mode: Any) -> None:
    tensor = torch.from_numpy(np.memmap(numbers, np.int32, mode))
    views = [tensor, tensor[3:], tensor[1::2], tensor[:6].reshape(2, 3).t(), tensor[0]]
    payload = pack({"it": views})
    assert payload.nbytes < 4096
    got = unpack(memoryview(region_of(payload)))["it"]
    assert [one.tolist() for one in got] == [one.tolist() for one in views]
    got[1][0] = -5
    assert (int(tensor[3]) == -5) == (mode == "r+")


def test_a_memmap_of_a_deleted_file_travels_by_content(numbers: Path) -> None:
    mapped = np.memmap(numbers, np.int32, "r")
    numbers.unlink()
    assert np.array_equal(shipped(m=mapped)["m"], np.arange(10_000))


# By value.


def test_lambdas_local_functions_and_partials_arrive() -> None:
    table = np.arange(10)
    calls: list[int] = []

    def local(x: int, *, scale: int = 2) -> int:
        calls.append(x)
        return int(table[x]) * scale

    def factorial(n: int) -> int:
        return 1 if n < 2 else n * factorial(n - 1)

    got = shipped(f=lambda x: local(x) + 1, p=functools.partial(local, scale=5), r=factorial)
    assert got["f"](3) == 7
    assert got["p"](3) == 15
    assert got["r"](5) == 120
    assert calls == []


def test_a_function_takes_along_only_the_globals_that_it_uses() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__", "np": np}
    exec(
        "used = np.arange(1000)\n"
        "unused = np.zeros(1_000_000)\n"
        "lock = __import__('threading').Lock()\n"
        "def f(i): return [used[j] for j in range(i)] + [np.pi]\n",
        namespace,
    )
    payload = pack({"f": namespace["f"]})
    assert payload.nbytes < 16_000
    assert unpack(memoryview(region_of(payload)))["f"](2) == [0, 1, np.pi]


class Base(torch.utils.data.Dataset[int]):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n


def _deep_dataset() -> type:
    class Middle(Base):
        table = np.arange(1000)

        def __init__(self, n: int) -> None:
            super().__init__(n)

        def __len__(self) -> int:
            return self.n

    class Top(Middle):
        def __init__(self, n: int) -> None:
            super().__init__(n + 1)

        def __getitem__(self, i: int) -> int:
            return int(self.table[i]) + isinstance(self, Top)

    return Top


def test_local_datasets_of_several_levels_work() -> None:
    kind = by_value(_deep_dataset)
    dataset = kind(3)
    assert len(dataset) == 4
    assert dataset[2] == 3
    assert isinstance(dataset, torch.utils.data.Dataset)
    assert [each.__name__ for each in kind.__mro__][:3] == ["Top", "Middle", "Base"]


def _dataclasses() -> Any:
    @dataclasses.dataclass
    class Inner:
        x: int = 1

    @dataclasses.dataclass(frozen=True, order=True)
    class Outer:
        name: str
        inner: Inner = dataclasses.field(default_factory=Inner, compare=False)
        tags: tuple[str, ...] = dataclasses.field(default=(), metadata={"unit": "m"})

        def shout(self) -> str:
            return self.name.upper()

    return Outer, Inner, Outer("a")


def test_local_dataclasses_stay_dataclasses() -> None:
    outer, inner, one = by_value(_dataclasses)
    made = outer("b", tags=("x",))
    assert type(one) is outer
    assert type(made.inner) is inner
    assert one < made
    assert made.shout() == "B"
    assert dataclasses.asdict(made) == {"name": "b", "inner": {"x": 1}, "tags": ("x",)}
    assert dataclasses.fields(outer)[2].metadata["unit"] == "m"
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.name = "c"


def _slots() -> Any:
    class Slotted:
        __slots__ = ("__weakref__", "x")

        def __init__(self) -> None:
            self.x = 1

    @dataclasses.dataclass(slots=True)
    class Also:
        y: int = 2

    return Slotted, Also


def test_local_classes_with_slots_keep_them() -> None:
    slotted, also = by_value(_slots)
    assert slotted().x == 1
    assert also().y == 2
    for kind in (slotted, also):
        assert not hasattr(kind(), "__dict__")


def _enums() -> Any:
    class Colour(enum.Enum):
        RED = "r"
        BLUE = "b"
        ROUGE = "r"

        @property
        def long(self) -> str:
            return self.name.lower()

        @classmethod
        def first(cls) -> Colour:
            return cls.RED

    class Planet(enum.Enum):
        EARTH = (5.9, 6.4)
        MARS = (0.6, 3.4)

        def __init__(self, mass: float, radius: float) -> None:
            self.mass = mass

    class Mode(enum.IntFlag):
        READ = enum.auto()
        WRITE = enum.auto()

    class Name(str, enum.Enum):
        A = "a"

    return Colour, Planet, Mode, Name, Colour.BLUE, Mode.READ | Mode.WRITE


def test_local_enumerations_stay_enumerations() -> None:
    colour, planet, mode, name, blue, both = by_value(_enums)
    assert [each.name for each in colour] == ["RED", "BLUE"]
    assert colour.ROUGE is colour.RED
    assert colour("b") is blue is colour["BLUE"]
    assert blue.long == "blue"
    assert colour.first() is colour.RED
    assert planet.MARS.mass == 0.6
    assert both == mode.READ | mode.WRITE
    assert both.value == 3
    assert name.A == "a"


def _enums_made_by_other_types() -> Any:
    class Coded(bytes, enum.Enum):
        def __new__(cls, code: int, label: str) -> Any:
            made = bytes.__new__(cls, [code])
            made._value_ = code
            made.label = label
            return made

    class Letter(Coded):
        A = 1, "a"
        B = 2, "b"
        ALSO_A = 1, "c"

    class Day(datetime.date, enum.Enum):
        FIRST = 2020, 1, 2
        NEXT = 2021, 3, 4

    @dataclasses.dataclass(frozen=True)
    class Size:
        x: int
        y: int = 2

    class Sizes(Size, enum.Enum):
        SMALL = 1
        LARGE = 3, 4

    return Coded, Letter, Day, Sizes


def test_members_of_enumerations_hold_the_data_that_they_held() -> None:
    coded, letter, day, sizes = by_value(_enums_made_by_other_types)
    assert issubclass(letter, coded)
    assert not coded.__members__
    assert letter(2) is letter.B
    assert (bytes(letter.B), letter.B.label) == (b"\2", "b")
    assert letter.ALSO_A is letter.A
    assert day(datetime.date(2021, 3, 4)) is day.NEXT
    assert day.FIRST.month == 1
    assert [(size.x, size.y) for size in sizes] == [(1, 2), (3, 4)]


T = TypeVar("T")


def _typed() -> Any:
    local = TypeVar("local", bound=int)

    class Stack(Generic[T]):
        items: list[T]

    class Bounded(Stack[int], Generic[local]):
        pass

    class Shape(abc.ABC):
        @abc.abstractmethod
        def area(self) -> float: ...

        @functools.cached_property
        def twice(self) -> float:
            return 2 * self.area()

    class Square(Shape):
        def area(self) -> float:
            return 4.0

        @staticmethod
        def corners() -> int:
            return 4

    class Sized(typing.Protocol):
        def __len__(self) -> int: ...

    return Stack, Bounded, Shape, Square, Sized


def test_local_generic_and_abstract_classes_work() -> None:
    stack, bounded, shape, square, _ = by_value(_typed)
    assert stack[int]().__class__ is stack
    assert bounded.__mro__[1] is stack
    assert bounded.__parameters__[0].__bound__ is int
    with pytest.raises(TypeError, match="abstract"):
        shape()
    assert square().twice == 8
    assert square.corners() == 4


def _registered_with_abstract_classes() -> Any:
    class Shape(abc.ABC):
        @abc.abstractmethod
        def area(self) -> float: ...

    class Drawn(Shape):
        def area(self) -> float:
            return 1.0

    class Square:
        """A shape by word only, and a mapping."""

    Shape.register(list)
    Drawn.register(Square)
    collections.abc.Mapping.register(Square)
    return Shape, Drawn, Square


def test_what_is_registered_with_an_abstract_class_stays_so() -> None:
    shape, drawn, square = by_value(_registered_with_abstract_classes)
    assert issubclass(list, shape)
    assert not issubclass(list, drawn)
    assert not issubclass(dict, shape)
    assert isinstance(square(), drawn)
    assert isinstance(square(), shape)
    assert isinstance(square(), collections.abc.Mapping)


def _subclass_of_an_alias() -> Any:
    class Waiting(queue.Queue[int]):
        pass

    return Waiting


def test_a_local_subclass_of_an_alias_knows_it() -> None:
    waiting = by_value(_subclass_of_an_alias)
    assert waiting.__orig_bases__ == (queue.Queue[int],)
    assert issubclass(waiting, queue.Queue)


def _type_parameters() -> Any:
    parameters = typing.ParamSpec("parameters")  # type: ignore[misc]

    class Wrapped(Generic[parameters]):
        def __init__(self, call: Callable[parameters, int]) -> None:
            self.call = call

    def wrap(call: Callable[parameters, int]) -> Wrapped[parameters]:
        return Wrapped(call)

    return wrap, Wrapped


def test_parameters_of_types_travel() -> None:
    wrap, wrapped = by_value(_type_parameters)
    assert type(wrap(len)) is wrapped
    assert [one.__name__ for one in wrapped.__parameters__] == ["parameters"]


def _dicts_and_new_types() -> Any:
    class Sample(typing.TypedDict):
        image: bytes

    class Labelled(Sample, total=False):
        label: int

    index = typing.NewType("index", int)

    def read(i: index) -> Labelled:
        return Labelled(image=b"", label=layout.unpack(b"\1\0")[0])

    layout = struct.Struct("<h")
    read.__annotations__ = {"i": index, "return": Labelled}
    return Sample, Labelled, index, read


def test_typed_dicts_new_types_and_structs_travel() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sample, labelled, index, read = by_value(_dicts_and_new_types)
    assert read(0) == {"image": b"", "label": 1}
    assert read.__annotations__ == {"i": index, "return": labelled}
    assert (labelled.__required_keys__, labelled.__optional_keys__) == ({"image"}, {"label"})
    assert typing.is_typeddict(sample)
    assert (index(3), index.__name__, index.__supertype__) == (3, "index", int)


def _of_script(text: str, name: str) -> Any:
    """What a script that is text defines by this name."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, "script", "exec", dont_inherit=True), namespace)  # no `__future__`
    return namespace[name]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="needs the statement `type`")
def test_what_the_statement_type_defines_travels() -> None:
    text = """
type Pair[T] = tuple[T, T]
type Rows = list[Pair[int]]
type Tree = int | list[Tree]

class Table[*Columns, **Options]:
    rows: Rows
    def first[T](self, rows: list[Pair[T]]) -> Pair[T]:
        return rows[0]
    def depth(self, tree: Tree) -> int:
        return 0 if isinstance(tree, int) else 1 + max(map(self.depth, tree))
"""
    table = shipped(it=_of_script(text, "Table"))["it"]
    assert table().first([(1, 2)]) == (1, 2)
    assert table().depth([1, [2]]) == 2
    assert [one.__name__ for one in table.__parameters__] == ["Columns", "Options"]
    rows = table.__annotations__["rows"]
    assert (rows.__name__, str(rows.__value__)) == ("Rows", "list[Pair[int]]")


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations were evaluated at once")
def test_annotations_that_only_type_checkers_understand_travel_as_text() -> None:
    text = """
import typing
import numpy as np
class Rows:
    known: int
    unknown: np.no_such_thing
    def __getitem__(self, i: Nowhere) -> np.no_such_thing:
        return i
class Point(typing.NamedTuple):
    x: Nowhere
class Plain:
    x: list[int]
    def plain(self, i: int) -> None: ...
kinds = Rows, Point, Plain
"""
    rows, point, plain = shipped(it=_of_script(text, "kinds"))["it"]
    assert rows()[3] == 3
    assert rows.__annotations__ == {"known": "int", "unknown": "np.no_such_thing"}
    assert rows.__getitem__.__annotations__ == {"i": "Nowhere", "return": "np.no_such_thing"}
    assert point(1).x == 1
    assert point.__annotations__ == {"x": "Nowhere"}
    assert plain.__annotations__ == {"x": list[int]}
    assert plain.plain.__annotations__ == {"i": int, "return": None}


def _tuples() -> Any:
    plain = collections.namedtuple("plain", "x y", defaults=[2])

    class Typed(NamedTuple):
        left: int
        right: str = "r"

        def both(self) -> str:
            return f"{self.left}{self.right}"

    return plain, Typed, plain(1), Typed(3)


def test_local_named_tuples_work() -> None:
    plain, typed, one, three = by_value(_tuples)
    assert one == plain(1, 2)
    assert type(one) is plain
    assert three.both() == "3r"
    assert type(three) is typed


def _mutual() -> Any:
    class Node:
        def make(self) -> Any:
            return Leaf(self)

    class Leaf:
        def __init__(self, parent: Node) -> None:
            self.parent = parent

        def up(self) -> Any:
            return Node, Leaf

    class Meta(type):
        def __call__(cls, *args: Any) -> Any:
            made = super().__call__(*args)
            made.stamped = True
            return made

    class Stamped(metaclass=Meta):
        pass

    class Ours(ValueError):
        def __init__(self, code: int) -> None:
            super().__init__(f"code {code}")
            self.code = code

    return Node, Leaf, Stamped, Ours, functools.lru_cache(lambda x: x * 2)


def test_classes_that_speak_of_each_other_and_metaclasses_work() -> None:
    node, leaf, stamped, ours, cached = by_value(_mutual)
    made = node().make()
    assert type(made) is leaf
    assert made.up() == (node, leaf)
    assert stamped().stamped
    assert str(ours(3)) == "code 3"
    assert cached(4) == 8


def test_a_class_shared_by_parts_stays_one_class() -> None:
    class Local:
        pass

    local = Local()
    got = shipped(cls=Local, kwargs={"one": local, "same": local}, f=lambda: Local())
    assert type(got["kwargs"]["one"]) is got["cls"] is type(got["f"]())
    assert got["kwargs"]["one"] is got["kwargs"]["same"]


def test_large_plain_containers_held_by_a_local_class_arrive_whole() -> None:
    class Local:
        rows: typing.ClassVar[Any] = [{"id": n, "x": np.full(2, n)} for n in range(2000)]

    kind = shipped(cls=Local)["cls"]
    assert [row["id"] for row in kind.rows] == list(range(2000))
    assert kind.rows[7]["x"].tolist() == [7, 7]


def test_bound_methods_and_callable_instances_arrive() -> None:
    class Collate:
        def __init__(self, pad: int) -> None:
            self.pad = pad

        def __call__(self, samples: Any) -> Any:
            return samples, self.pad

        def method(self, samples: Any) -> Any:
            return self(samples)

    got = shipped(f=Collate(3), g=Collate(4).method, h=operator.itemgetter(1))
    assert got["f"]("s") == ("s", 3)
    assert got["g"]("s") == ("s", 4)
    assert got["h"]("ab") == "b"


def test_instances_come_back_as_the_class_that_was_shipped() -> None:
    @dataclasses.dataclass
    class Sample:
        x: Any

    def make(n: int) -> Sample:
        return Sample(torch.full((2,), n))

    got = shipped(f=make)
    copy = got["f"](3)
    assert type(copy) is not Sample  # in a worker there is no other way
    buffer = bytearray(4096)
    arena = Arena(memoryview(buffer))
    skeleton = encode([copy, copy], arena)
    back = decode(skeleton, np.ndarray((arena.used_bytes,), np.uint8, memoryview(buffer)))
    assert type(back[0]) is Sample
    assert back[0].x.tolist() == [3, 3]
    assert type(decode(encode(Sample, arena), np.zeros(0, np.uint8))) is type


def test_packing_warns_of_nothing_and_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for make in (_deep_dataset, _dataclasses, _enums, _typed, _tuples, _mutual):
            by_value(make)
    assert capfd.readouterr() == ("", "")


def _registered() -> Any:
    registry: dict[str, type] = {}

    class Base:
        def __init_subclass__(cls, key: str, **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            if key in registry:
                raise ValueError(f"{key} is registered twice")
            registry[key] = cls

        @classmethod
        def all(cls) -> dict[str, type]:
            return registry

        def name(self) -> str:
            return "base"

    class Child(Base, key="child"):
        def name(self) -> str:
            return f"child of {super().name()}, {__class__.__name__}"  # type: ignore[name-defined]

    class Meta(type):
        def __new__(
            meta,
            name: str,
            bases: tuple[type, ...],
            body: dict[str, Any],
            *,
            key: str,
        ) -> Any:
            registry[key] = made = super().__new__(meta, name, bases, body)
            own = {k: v for k, v in body.items() if not k.startswith("__")}
            made.numbers = [k for k, v in own.items() if isinstance(v, int)]  # type: ignore[attr-defined]
            return made

        def __init__(cls, *args: Any, key: str) -> None:
            super().__init__(*args)

    class Made(metaclass=Meta, key="made"):
        a = 1

    return Base, Child, Made


def test_hooks_of_local_bases_and_metaclasses_do_not_run_again() -> None:
    base, child, made = by_value(_registered)
    assert base.all() == {"child": child, "made": made}
    assert child().name() == "child of base, Child"
    assert made.numbers == ["a"]
    with pytest.raises(TypeError, match="key"):
        type("Other", (base,), {})  # but they do for a new class
    type.__call__(type(child), "Other", (base,), {}, key="other")
    assert set(base.all()) == {"child", "made", "other"}


def test_a_class_that_holds_its_own_bound_methods_arrives() -> None:
    class Model:
        validators: typing.ClassVar[dict[str, Any]] = {}

        @classmethod
        def check(cls, value: int) -> Any:
            return cls, value

    Model.validators["x"] = Model.check
    kind = shipped(it=Model)["it"]
    assert kind.validators["x"](1) == (kind, 1)


def test_in_the_process_that_ships_a_class_stays_the_one_it_is() -> None:
    child = _registered()[1]
    assert unpack(memoryview(region_of(pack({"it": child()}))))["it"].__class__ is child


def test_modules_run_what_they_run_for_a_new_class() -> None:
    class Read(registering.Body):
        key = "read"

    registering.made.clear()
    assert shipped(it=Read)["it"].key == "read"
    assert registering.made == {"read": "Read"}


def test_a_class_whose_keywords_are_lost_is_refused_or_warned_of() -> None:
    class Strict(registering.Strict, key="a"):
        pass

    class Wants(metaclass=registering.Wants, key="a"):
        pass

    class Lenient(registering.Lenient, key="b"):
        pass

    for kind, words in (
        (Strict, r"Strict.__init_subclass__ takes key"),
        (Wants, r"Wants.__new__ takes key"),
    ):
        with pytest.raises(ShippingError, match=f"{words}.*start_method='main'"):
            pack({"dataset_class": kind})
    with pytest.warns(UserWarning, match=r"Lenient.__init_subclass__ takes key"):
        pack({"dataset_class": Lenient})


def test_relative_imports_in_functions_of_main_work() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__", "__package__": "swift_loader.batch"}
    exec("def f():\n from .arena import Arena\n return Arena", namespace)
    assert shipped(f=namespace["f"])["f"]() is Arena


def test_classes_of_main_are_found_by_pickles_of_their_instances() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("class InFile:\n x = 3", namespace)
    kind = shipped(it=namespace["InFile"])["it"]
    try:
        assert type(pickle.loads(pickle.dumps(kind()))) is kind
    finally:
        del vars(sys.modules["__main__"])["InFile"]


# What can't travel.


class Holder:
    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


class Inherited:
    """As locks and queues of multiprocessing do it."""

    def __reduce__(self) -> str:
        raise RuntimeError("should only be shared through inheritance")


def _generator() -> Iterator[int]:
    yield 1


def _function_with(value: Any) -> Callable[[], Any]:
    return lambda: value


def _open() -> Any:
    return open(os.devnull)


STUCK: dict[str, tuple[Callable[[], Any], str]] = {
    "lock": (lambda: {"k": threading.Lock()}, r"\['k'\] \(a _thread.lock\).*constructor"),
    "rlock": (lambda: [1, {"a": threading.RLock()}], r"kwargs\[1\]\['a'\] \(a _thread.RLock\)"),
    "generator": (lambda: {"x": _generator()}, r"\['x'\] \(a builtins.generator\).*Pass a list"),
    "file": (lambda: Holder(log=_open()), r"kwargs\.log \(a _io.TextIOWrapper\).*path"),
    "raw file": (lambda: (io.FileIO(os.devnull),), r"kwargs\[0\] \(a _io.FileIO\)"),
    "meta tensor": (lambda: {"t": torch.empty(2, device="meta")}, r"\['t'\].*it is on meta"),
    "captured": (
        lambda: _function_with(threading.Lock()),
        r"kwargs \(its variable 'value'\) \(a _thread.lock\)",
    ),
    "in a partial": (
        lambda: functools.partial(importable, x=threading.Lock()),
        r"kwargs\.keywords\['x'\] \(a _thread.lock\)",
    ),
    "own refusal": (lambda: {"q": Inherited()}, r"kwargs\['q'\].*shared through inheritance"),
    "map of memory": (lambda: {"m": mmap.mmap(-1, 10)}, r"kwargs\['m'\] \(a mmap.mmap\)"),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("name", STUCK)
def test_what_cannot_travel_is_named(name: str) -> None:
    make, words = STUCK[name]
    with pytest.raises(ShippingError, match=words):
        pack({"dataset_class": importable, "kwargs": make()})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_tensors_do_not_travel() -> None:
    with pytest.raises(ShippingError, match=r"kwargs\['t'\].*it is on cuda:0.*CPU tensor"):
        pack({"kwargs": {"t": torch.ones(2, device="cuda")}})


def test_a_cycle_with_something_stuck_in_it_is_named_too() -> None:
    knot: dict[str, Any] = {}
    knot["self"] = knot
    knot["lock"] = threading.Lock()
    with pytest.raises(ShippingError, match=r"kwargs\['lock'\]"):
        pack({"kwargs": knot})


def test_large_bytes_are_made_once_before_the_fork_or_in_whoever_unpacks() -> None:
    text = bytes(range(256)) * (1 << 13)
    region = memoryview(bytearray(bytes(pack({"dataset_kwargs": {"text": text, "more": b"x"}}))))
    assert unpack(region)["dataset_kwargs"] == {"text": text, "more": b"x"}
    try:
        hold_large(region, "this one")
        first, second = (unpack(region)["dataset_kwargs"]["text"] for _ in range(2))
        assert first is second
        assert first == text
    finally:
        hold("none", ())


def _of_all_kinds() -> dict[str, Any]:
    class Point(NamedTuple):
        x: int
        y: str = "text with blanks"

    class Colour(enum.Enum):
        red = 1

    class Base(abc.ABC):
        @abc.abstractmethod
        def size(self) -> int: ...

    class Child(Base):
        def __init__(self) -> None:
            self.point = Point(1)
            self.colours = {"red", "green", "blue"}

        def size(self) -> int:
            return len([lambda: "another text", Colour.red, 123456789])

    values = np.arange(3000.0)
    block = bytes(2 << 20)
    kwargs = {"it": Child(), "block": block, "values": values, "part": values[::3]}
    tensors = [torch.arange(5000), torch.ones(3, 4).T, torch.Generator()]
    return {"dataset_kwargs": kwargs, "tensors": tensors, "f": lambda: values}


def test_the_same_things_lie_in_a_region_and_others_do_not() -> None:
    parts = _of_all_kinds()
    region = memoryview(region_of(pack(parts)))
    child = parts["dataset_kwargs"]["it"]
    copy.copy(child)  # pickle keeps a list of slots in the class
    text = child.size.__func__.__code__.co_consts  # `marshal` counts who refers to these
    assert not type(child).__annotations__  # made when they are asked for
    assert pack(parts).lies_in(region)
    with patch.object(shipping, "tracker", return_value=None if shipping.tracker() else 3):
        assert pack(parts).lies_in(region)
    assert text
    parts["dataset_kwargs"]["values"][2999] = 0
    assert not pack(parts).lies_in(region)
    parts["dataset_kwargs"]["values"][2999] = 2999
    assert pack(parts).lies_in(region)
    for change in (
        lambda: child.colours.add("x"),
        lambda: parts["tensors"][0].__setitem__(4999, 0),
        lambda: parts["tensors"].append(torch.arange(5000)),
        lambda: setattr(type(child), "size", len),
        lambda: parts["dataset_kwargs"].update(block=bytes(1 << 20)),
    ):
        region = memoryview(region_of(pack(parts)))
        assert pack(parts).lies_in(region)
        change()
        assert not pack(parts).lies_in(region)


def test_the_collector_changes_nothing_in_what_is_packed() -> None:
    parts = _of_all_kinds()
    region = memoryview(region_of(pack(parts)))
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        assert all(pack(parts).lies_in(region) for _ in range(20))
    finally:
        gc.set_threshold(*before)
