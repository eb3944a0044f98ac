"""A batch to bytes and back: every type as it was, nothing copied, nothing held too long."""

from __future__ import annotations

import dataclasses
import enum
import gc
import math
import mmap
import pickle
import re
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from swift_loader.batch.arena import Arena, SlotTooSmall
from swift_loader.batch.codec import decode, decode_bytes, encode, encode_bytes
from swift_loader.errors import BatchError

Base = npt.NDArray[np.uint8]


def base_over(buffer: bytearray, used_bytes: int) -> Base:
    """What a reader makes of a slot: a fresh array over the bytes used."""
    return np.ndarray((used_bytes,), np.uint8, memoryview(buffer))


def sent(batch: Any, nbytes: int = 1 << 20) -> tuple[Any, Base]:
    """The batch after its way, and the base under it."""
    buffer = bytearray(nbytes)
    arena = Arena(memoryview(buffer))
    skeleton = encode(batch, arena)
    base = base_over(buffer, arena.used_bytes)
    for again in (memoryview(skeleton), skeleton, skeleton):
        decode(again, base)
    return decode(skeleton, base), base  # by then from its pattern, where it has one


def assert_same(one: Any, other: Any) -> None:
    """The same types, dtypes, shapes and values, all the way down; NaN is NaN."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.layout, one.is_nested) == (
            other.dtype,
            other.layout,
            other.is_nested,
        )
        if one.is_nested:
            assert_same(list(one.unbind()), list(other.unbind()))
            return
        assert one.shape == other.shape
        if one.layout is not torch.strided:
            assert_same(one.to_dense(), other.to_dense())
            return
        assert _bits(one) == _bits(other)
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if one.dtype.names:  # there may be gaps between the fields, with anything in them
            for name in one.dtype.names:
                assert_same(one[name], other[name])
        elif one.dtype.hasobject:
            assert_same(one.tolist(), other.tolist())
        else:
            assert one.tobytes() == other.tobytes()
    elif isinstance(one, dict):
        assert list(one) == list(other)
        assert_same(list(one.values()), list(other.values()))
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    elif isinstance(one, float) and math.isnan(one):
        assert math.isnan(other)
    else:
        assert one == other


def _bits(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg()
    plain = plain.clone(memory_format=torch.contiguous_format)
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


# Tensors.

#: all but quantized ones, and those of less than a byte, of which torch makes no tensors
DTYPES = sorted(
    {
        dtype
        for dtype in vars(torch).values()
        if isinstance(dtype, torch.dtype)
        and not re.fullmatch(r"torch\.(q.*|bits.*|quint.*|u?int[1-7])", str(dtype))
    },
    key=str,
)


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (3, 4)], ids=str)
def test_every_dtype_arrives_bit_by_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    nbytes = math.prod(shape) * dtype.itemsize
    highest = 2 if dtype is torch.bool else 256
    raw = torch.randint(0, highest, (nbytes,), dtype=torch.uint8)
    tensor = torch.empty(shape, dtype=dtype)
    tensor.untyped_storage().copy_(raw.untyped_storage())
    assert_same(sent([tensor])[0], [tensor])


def _complex() -> torch.Tensor:
    return torch.randn(3, 4, dtype=torch.complex64)


VIEWS: dict[str, Callable[[], torch.Tensor]] = {
    "transposed": lambda: torch.randn(3, 4).t(),
    "sliced": lambda: torch.randn(8, 8)[::2, 1:5],
    "expanded": lambda: torch.randn(3, 1).expand(3, 1000),
    "expanded from nothing": lambda: torch.tensor(7).expand(5, 5),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "permuted": lambda: torch.randn(2, 3, 4).permute(2, 0, 1),
    "one element of a stride": lambda: torch.randn(4)[1::2][:1],
    "diagonal": lambda: torch.randn(5, 5).diagonal(),
    "conjugated": lambda: _complex().conj(),
    "conjugated view": lambda: _complex().conj()[1:, ::2],
    "negated": lambda: _complex().conj().imag,
    "negated scalar": lambda: _complex().conj().imag[0, 0],
    "half complex": lambda: torch.randn(4, dtype=torch.complex32).conj(),
    "bfloat16 sliced": lambda: torch.randn(4, 4).bfloat16()[:, 1],
    "float8 sliced": lambda: torch.randn(4, 4).to(torch.float8_e4m3fn)[:, 1],
}


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_arrives_as_it_looks(name: str) -> None:
    view = VIEWS[name]()
    assert_same(sent((view,))[0], (view,))


@pytest.mark.parametrize("name", ["transposed", "channels last", "permuted"])
def test_the_order_in_memory_of_a_dense_tensor_is_kept(name: str) -> None:
    view = VIEWS[name]()
    assert sent(view)[0].stride() == view.stride()


def test_a_view_ships_what_it_shows_and_not_its_storage() -> None:
    _, base = sent(torch.zeros(1000, 1000, dtype=torch.uint8)[5, 10:74])
    assert base.nbytes == 64


def test_what_lies_in_the_arena_is_not_copied_again() -> None:
    buffer = bytearray(1 << 16)
    arena = Arena(memoryview(buffer))
    made = arena.empty((8, 16), torch.float32)
    assert made is not None
    made.copy_(torch.randn(8, 16))
    array = arena.empty_array((2048,), np.dtype(np.int64))
    assert array is not None
    array[:] = np.arange(2048)
    used_bytes = arena.used_bytes
    skeleton = encode({"x": made, "row": made[3], "array": array}, arena)
    assert arena.used_bytes == used_bytes
    got = decode(skeleton, base_over(buffer, used_bytes))
    assert_same(got, {"x": made, "row": made[3], "array": array})


def test_decoded_tensors_are_apart_from_each_other_for_autograd() -> None:
    got, _ = sent([torch.ones(4), torch.ones(4)])
    weight = torch.ones(4, requires_grad=True)
    loss = (weight * got[0]).sum()
    got[1].add_(1)  # would be an error if both shared a version counter
    loss.backward()
    assert got[0].untyped_storage().nbytes() == 16


def test_a_tensor_that_requires_grad_arrives_detached() -> None:
    leaf = torch.randn(3, requires_grad=True)
    got, _ = sent({"leaf": leaf, "inner": leaf * 2})
    assert not got["leaf"].requires_grad
    assert not got["inner"].requires_grad
    assert_same(got["inner"], (leaf * 2).detach())


def test_a_parameter_stays_a_parameter() -> None:
    parameter = torch.nn.Parameter(torch.randn(3))
    got, _ = sent(parameter)
    assert type(got) is torch.nn.Parameter
    assert got.requires_grad
    assert _bits(got) == _bits(parameter)


INDICES = torch.tensor([[0, 0, 2], [1, 1, 0]])
DENSE = torch.randn(4, 6) * (torch.rand(4, 6) > 0.5)
SPARSE: dict[str, Callable[[], torch.Tensor]] = {
    "COO": lambda: DENSE.to_sparse(),
    "COO, not coalesced": lambda: torch.sparse_coo_tensor(INDICES, torch.randn(3), (3, 2)),
    "COO, dense within": lambda: torch.sparse_coo_tensor(INDICES[:1], torch.randn(3, 5), (3, 5)),
    "COO, empty": lambda: torch.sparse_coo_tensor(size=(2, 3)),
    "CSR": lambda: DENSE.to_sparse_csr(),
    "CSC": lambda: DENSE.to_sparse_csc(),
    "BSR": lambda: DENSE.to_sparse_bsr((2, 3)),
    "BSC": lambda: DENSE.to_sparse_bsc((2, 3)),
    "CSR of bfloat16": lambda: DENSE.bfloat16().to_sparse_csr(),
}


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("name", SPARSE)
def test_sparse_tensors_arrive_in_their_layout(name: str) -> None:
    tensor = SPARSE[name]()
    got, _ = sent(tensor)
    assert_same(got, tensor)
    if tensor.layout is torch.sparse_coo:
        assert got.is_coalesced() == tensor.is_coalesced()
        assert torch.equal(got._indices(), tensor._indices())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_tensors_arrive_in_their_layout(layout: torch.layout) -> None:
    parts = [torch.randn(2, 5), torch.randn(3, 5), torch.randn(1, 5)]
    nested = torch.nested.nested_tensor(parts, layout=layout)
    got, _ = sent([nested])
    assert_same(got, [nested])


class Labelled(torch.Tensor):
    """A subclass that holds more than its numbers."""

    __slots__ = ("unit",)
    label: str
    unit: str


class Overriding(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.add:
            raise AssertionError("asked while encoding")
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_subclass_arrives_with_what_it_holds() -> None:
    tensor = torch.randn(2, 3).as_subclass(Labelled)
    tensor.label, tensor.unit = "mask", "m"
    got, _ = sent([tensor, torch.ones(2).as_subclass(Overriding)])
    assert type(got[0]) is Labelled
    assert (got[0].label, got[0].unit) == ("mask", "m")
    assert _bits(got[0]) == _bits(tensor)
    assert type(got[1]) is Overriding


def test_attributes_hung_on_a_plain_tensor_arrive() -> None:
    tensor = torch.randn(2)
    tensor.origin = {"row": torch.ones(1)}  # type: ignore[attr-defined]
    got, _ = sent(tensor)
    assert type(got) is torch.Tensor
    assert torch.equal(got.origin["row"], torch.ones(1))


class TensorDict(dict[str, Any]):
    """Holds tensors, and something beside them."""

    batch_size: int = 0


@dataclasses.dataclass
class Sample:
    image: torch.Tensor
    name: str
    boxes: list[torch.Tensor] = dataclasses.field(default_factory=list)


class Colour(enum.Enum):
    RED = 1


Pair = namedtuple("Pair", "left right")


class Holder:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def test_objects_that_hold_tensors_arrive_whole() -> None:
    held = TensorDict(a=torch.ones(2))
    held.batch_size = 2
    batch = [
        held,
        Sample(torch.zeros(2, 2), "x", [torch.ones(4)]),
        Pair(torch.ones(1), None),
        OrderedDict(a=torch.ones(1)),
        Holder(torch.full((3,), 2.0)),
    ]
    got, base = sent(batch)
    assert type(got[0]) is TensorDict
    assert got[0].batch_size == 2
    assert type(got[1]) is Sample
    assert torch.equal(got[1].boxes[0], torch.ones(4))
    assert type(got[2]) is Pair
    assert type(got[3]) is OrderedDict
    assert type(got[4]) is Holder
    for tensor in (got[0]["a"], got[1].image, got[2].left, got[4].tensor):
        assert np.shares_memory(tensor.numpy(), base)


def test_one_tensor_twice_is_one_tensor_twice() -> None:
    tensor = torch.randn(100)
    got, base = sent([tensor, tensor])
    assert got[0] is got[1]
    assert base.nbytes < 2 * tensor.nbytes


# Arrays.

RECORD = np.dtype([("id", np.int32), ("at", np.float64, (2,))], align=True)
ARRAYS: dict[str, Any] = {
    "0-dim": np.array(3.5),
    "empty": np.empty((0, 4), np.int16),
    "Fortran order": np.asfortranarray(np.arange(12).reshape(3, 4)),
    "reversed": np.arange(10)[::-1],
    "reversed rows": np.arange(12).reshape(3, 4)[::-1, ::-2],
    "strided": np.arange(20.0)[::3],
    "broadcast": np.broadcast_to(np.arange(3), (4, 3)),
    "read-only": np.frombuffer(b"constant", np.uint8),
    "big-endian": np.arange(4, dtype=">i4"),
    "records": np.array([(1, (2.0, 3.0)), (4, (5.0, 6.0))], RECORD),
    "text": np.array(["a", "longer", ""]),
    "bytes": np.array([b"a", b"bc"]),
    "dates": np.array(["2020-01-01", "NaT"], "M8[ns]"),
    "spans of time": np.array([1, 2], "m8[s]"),
    "objects": np.array([{"x": 1}, None, [1, 2]], object),
    "long double": np.arange(3, dtype=np.longdouble),
    "half": np.arange(3, dtype=np.float16),
    "complex": np.arange(3, dtype=np.complex128) * 1j,
    "raw": np.frombuffer(b"12345678", "V4"),
    "large": np.arange(10_000).reshape(100, 100),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_arrive_exactly(name: str) -> None:
    assert_same(sent({"x": ARRAYS[name]})[0]["x"], ARRAYS[name])


def test_fortran_order_is_kept() -> None:
    got, _ = sent(ARRAYS["Fortran order"])
    assert got.strides == ARRAYS["Fortran order"].strides


def test_masked_arrays_and_numpy_scalars_arrive() -> None:
    masked = np.ma.masked_array(np.arange(4), mask=[0, 1, 0, 1])
    scalars = [
        np.float32(1.5),
        np.int8(-3),
        np.bool_(True),
        np.datetime64("2020-01-01"),
        np.str_("x"),
    ]
    got, _ = sent([masked, scalars])
    assert isinstance(got[0], np.ma.MaskedArray)
    assert got[0].tolist() == [0, None, 2, None]
    assert_same(got[1], scalars)


def test_tensors_inside_object_arrays_lie_in_the_slot() -> None:
    array = np.empty(2, object)
    array[:] = [torch.ones(50), None]
    got, base = sent(array)
    assert np.shares_memory(got[0].numpy(), base)


def test_an_array_over_a_file_arrives_as_an_ordinary_one(tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "x", np.int32, "w+", shape=(100,))
    mapped[:] = np.arange(100)
    got, _ = sent(mapped[10:20])
    assert type(got) is np.ndarray
    assert got.tolist() == list(range(10, 20))


def test_plain_values_arrive() -> None:
    numbers = [None, True, 1, 2**80, 1.5, float("nan"), 1j]
    texts = ["text", b"x" * 10_000, bytearray(b"y")]
    batch = [*numbers, *texts, {1, 2}, frozenset({3}), ..., range(3), slice(1, 2), Colour.RED]
    assert_same(sent(batch)[0], batch)


class OutOfBand:
    """As data frames do it: gives its buffers away."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __reduce_ex__(self, protocol: Any) -> Any:
        return OutOfBand, (pickle.PickleBuffer(self.data),)


def test_buffers_of_unknown_objects_lie_in_the_slot_too() -> None:
    got, base = sent([OutOfBand(bytearray(b"a" * 100)), torch.ones(3), OutOfBand(b"b" * 200)])
    assert bytes(got[0].data) == b"a" * 100
    assert bytes(got[2].data) == b"b" * 200
    assert torch.equal(got[1], torch.ones(3))
    assert np.shares_memory(np.asarray(got[0].data), base)
    assert memoryview(got[2].data).readonly


def test_what_pickle_cannot_do_goes_through_dill() -> None:
    class Local:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor

    offset = torch.ones(3)
    got, base = sent({"f": lambda x: x + offset, "o": Local(torch.zeros(64)), "a": np.arange(50)})
    assert torch.equal(got["f"](torch.zeros(3)), torch.ones(3))
    assert np.shares_memory(got["o"].tensor.numpy(), base)
    assert np.shares_memory(got["a"], base)


# The slot.


def test_too_small_an_arena_says_what_would_do() -> None:
    batch = {
        "a": torch.randn(100),
        "b": [np.arange(1000), torch.randn(7, 7).t()],
        "c": torch.ones(3),
    }
    with pytest.raises(SlotTooSmall) as caught:
        encode(batch, Arena(memoryview(bytearray(512))))
    needed_bytes = caught.value.needed_bytes
    got, base = sent(batch, needed_bytes)
    assert base.nbytes == needed_bytes
    assert_same(got, batch)
    with pytest.raises(SlotTooSmall):
        sent(batch, needed_bytes - 64)


def test_growing_counts_what_lay_in_the_old_slot() -> None:
    old = Arena(memoryview(bytearray(1024)))
    made = old.empty((200,), torch.float32)
    assert made is not None
    made.copy_(torch.arange(200))
    batch = [made, made[:50], torch.arange(1000)]
    with pytest.raises(SlotTooSmall) as caught:
        encode(batch, old)
    assert_same(sent(batch, caught.value.needed_bytes)[0], batch)


def test_nothing_needs_room_without_numbers() -> None:
    arena = Arena(None)
    skeleton = encode({"text": ["a"], "none": None, "empty": torch.empty(0, 3)}, arena)
    assert arena.used_bytes == 0
    got = decode(skeleton, base_over(bytearray(), 0))
    assert got["empty"].shape == (0, 3)


def test_offsets_beyond_4_gib_are_exact() -> None:
    size = (4 << 30) + (1 << 20)
    region = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # touched in one page
    arena = Arena(region)
    assert arena.reserve(4 << 30) == 0
    skeleton = encode([torch.arange(5), np.arange(7)], arena)
    base: Base = np.ndarray((arena.used_bytes,), np.uint8, region)
    got = decode(skeleton, base)
    assert got[0].tolist() == [0, 1, 2, 3, 4]
    assert got[1].tolist() == list(range(7))


def test_a_batch_beyond_4_gib_asks_for_all_of_it() -> None:
    wide = torch.zeros(1, dtype=torch.uint8).expand(5 << 30)  # a byte, seen five billion times
    with pytest.raises(SlotTooSmall) as caught:
        encode([wide, torch.ones(1)], Arena(memoryview(bytearray(64))))
    assert caught.value.needed_bytes == (5 << 30) + 64


# Lifetimes.

KEEPERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "itself": lambda tensor: tensor,
    "detach": lambda tensor: tensor.detach(),
    "data": lambda tensor: tensor.data,
    "numpy": lambda tensor: tensor.numpy(),
    "numpy of numpy": lambda tensor: tensor.numpy()[1:].view(np.uint8),
    "slice": lambda tensor: tensor[1:2],
    "reshape": lambda tensor: tensor.view(-1),
    "other dtype": lambda tensor: tensor.view(torch.int32),
    "storage": lambda tensor: tensor.untyped_storage(),
    "memoryview": lambda tensor: memoryview(tensor.numpy()),
    "dlpack": lambda tensor: torch.from_dlpack(tensor),
    "requires grad": lambda tensor: tensor.requires_grad_() * 2,
}


@pytest.mark.parametrize("name", KEEPERS)
def test_whatever_is_derived_holds_the_base_and_the_last_one_frees_it(name: str) -> None:
    got, base = sent([torch.randn(4, 4), np.arange(4), torch.ones(3).bfloat16()])
    freed: list[bool] = []
    weakref.finalize(base, freed.append, True)
    kept = KEEPERS[name](got[0])
    graph = kept.grad_fn if isinstance(kept, torch.Tensor) else None
    del base, got
    gc.collect()
    if graph is None:
        assert not freed
    del kept, graph
    gc.collect()
    assert freed


@pytest.mark.parametrize("place", range(4))
def test_each_value_of_a_batch_holds_the_base_alone(place: int) -> None:
    batch = [
        np.arange(9),
        torch.ones(3).bfloat16(),
        OutOfBand(bytearray(99)),
        torch.eye(3).to_sparse(),
    ]
    got, base = sent(batch)
    freed: list[bool] = []
    weakref.finalize(base, freed.append, True)
    kept = got[place]
    del base, got
    gc.collect()
    assert not freed
    del kept
    gc.collect()
    assert freed


def test_views_are_writable_and_write_into_the_slot() -> None:
    got, base = sent([torch.zeros(3), np.zeros(3)])
    got[0].add_(1)
    got[1] += 2
    assert base.nbytes == 128
    assert base[:12].view(np.float32).tolist() == [1, 1, 1]
    assert base[64:88].view(np.float64).tolist() == [2, 2, 2]


def test_encoding_and_decoding_leave_no_cycle_that_holds_a_batch() -> None:
    gc.collect()
    gc.disable()
    try:
        tensor = torch.ones(3)
        freed: list[str] = []
        weakref.finalize(tensor, freed.append, "batch")
        buffer = bytearray(1 << 12)
        arena = Arena(memoryview(buffer))
        skeleton = encode({"x": tensor, "holder": Holder(tensor)}, arena)
        del tensor
        assert freed == ["batch"]
        base = base_over(buffer, arena.used_bytes)
        weakref.finalize(base, freed.append, "base")
        got = decode(skeleton, base)
        del base, got
        assert freed == ["batch", "base"]
    finally:
        gc.enable()


# Refusals.


REFUSED: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "meta": (lambda: torch.empty(3, device="meta"), "META tensor of shape .* has no values"),
    "quantized": (lambda: torch.quantize_per_tensor(DENSE, 0.1, 0, torch.qint8), "dequantize"),
    "mkldnn": (lambda: torch.ones(3, 3).to_mkldnn(), "to_dense"),
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_tensors_that_cannot_travel_are_refused(name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises(BatchError, match=r"field \['x'\]\[0\] \(a torch.Tensor\): .*" + words):
        sent({"a": torch.ones(3), "x": [make()]})


def test_a_tensor_whose_memory_is_gone_is_refused() -> None:
    tensor = torch.ones(3)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(BatchError, match="no memory"):
        sent(tensor)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_tensors_are_refused_with_an_explanation() -> None:
    with pytest.raises(BatchError, match="must not touch CUDA"):
        sent({"x": torch.ones(3, device="cuda")})


def test_what_nothing_can_pickle_is_named() -> None:
    sample = Sample(torch.ones(1), "a", [(number for number in range(3))])  # type: ignore[list-item]
    with pytest.raises(BatchError, match=r"field \[1\]\.boxes\[0\] .* cannot pickle 'generator'"):
        sent([torch.ones(2), sample])


def test_an_error_of_the_users_own_reduce_arrives() -> None:
    class Broken(Exception):
        pass

    class Stubborn:
        def __reduce__(self) -> str:
            raise Broken("mine")

    with pytest.raises(Broken, match="mine"):
        sent(Stubborn())


# Bytes of the user's own encoder.


@pytest.mark.parametrize("payload", [b"", b"abc", bytearray(1000), memoryview(b"x" * 65)])
def test_bytes_of_the_users_encoder_arrive(payload: Any) -> None:
    buffer = bytearray(2048)
    arena = Arena(memoryview(buffer))
    skeleton = encode_bytes(payload, arena)
    assert decode_bytes(skeleton, base_over(buffer, arena.used_bytes)) == payload


def test_bytes_that_do_not_fit_say_how_many_would() -> None:
    with pytest.raises(SlotTooSmall) as caught:
        encode_bytes(b"x" * 100, Arena(memoryview(bytearray(64))))
    encode_bytes(b"x" * 100, Arena(memoryview(bytearray(caught.value.needed_bytes))))


# Everything together.

TENSOR_DTYPES = [
    torch.float32,
    torch.int64,
    torch.bool,
    torch.bfloat16,
    torch.complex64,
    torch.uint16,
]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """A tensor of some dtype, seen through some views."""
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    tensor = torch.randint(0, 2, shape).to(draw(st.sampled_from(TENSOR_DTYPES)))
    for _ in range(draw(st.integers(0, 3))):
        if not tensor.dim():
            break
        dim = draw(st.integers(0, tensor.dim() - 1))
        match draw(st.sampled_from(["transpose", "step", "expand", "narrow", "conj"])):
            case "transpose":
                tensor = tensor.transpose(0, dim)
            case "step":
                tensor = tensor.unfold(dim, 1, 2).squeeze(-1) if tensor.shape[dim] else tensor
            case "expand":
                tensor = tensor.unsqueeze(dim).expand(*tensor.shape[:dim], 2, *tensor.shape[dim:])
            case "narrow":
                tensor = tensor.narrow(dim, 0, tensor.shape[dim] // 2)
            case "conj":
                tensor = tensor.conj()
    return tensor


arrays = st.one_of(
    npst.arrays(dtype, npst.array_shapes(min_dims=0, min_side=0, max_side=4))
    for dtype in (np.int8, np.float64, np.complex64, np.dtype("U3"), np.dtype("M8[s]"), RECORD)
)
views = st.sampled_from(
    [lambda x: x, lambda x: x.T, lambda x: x[::-1] if x.ndim else x, np.asfortranarray]
)
plain = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary())
leaves = st.one_of(plain, tensors(), st.builds(lambda view, array: view(array), views, arrays))
batches = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=3), inner, max_size=4),
        st.builds(Pair, inner, inner),
        st.tuples(inner, inner),
    ),
    max_leaves=12,
)


@settings(max_examples=150)
@given(batches)
def test_any_batch_arrives_as_it_was(batch: Any) -> None:
    try:
        got, _ = sent(batch, 64)
    except SlotTooSmall as small:
        got, _ = sent(batch, small.needed_bytes)
    assert_same(got, batch)
