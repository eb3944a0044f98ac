"""How tensors, arrays and classes are pickled: as calls of `rebuild`, their numbers in an arena."""

from __future__ import annotations

import copyreg
from pickle import PickleBuffer
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swift_loader.batch import rebuild
from swift_loader.batch.arena import Arena, carrier_of
from swift_loader.batch.identity import class_by_token, token_of
from swift_loader.errors import BatchError

__all__ = ["NoRoom", "Placer"]

Reduced = tuple[Any, ...]

_COMPRESSED = {torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}
_QUANTIZED = {torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4}
_NAMES: dict[torch.dtype, str] = {
    dtype: str(dtype).removeprefix("torch.")
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and dtype not in _QUANTIZED
}
_PLAIN = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64} | {
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
}
#: below this an array is copied without asking whether it lies in the arena: asking costs as much
_WORTH_ASKING_BYTES = 4096

_rebuild_tensor = rebuild.tensor
_rebuild_array = rebuild.array


class NoRoom(Exception):
    """The arena is full; the pickling is given up."""


class Whole:
    """Stands for the base in a skeleton: one object, so it is pickled once a batch."""

    __slots__ = ()


class Placer:
    """Lays the buffers of one batch into `arena`, and reduces what they belonged to.

    Args:
        arena: where to.
        measuring: the arena is empty, and its `wanted_bytes` is all that is asked for: go on when
            something does not fit.
    """

    def __init__(self, arena: Arena, measuring: bool = False) -> None:
        self.whole = Whole()
        self.table: list[int] | None = None  # offset, nbytes of the buffers of unknown objects
        self._arena = arena
        self._address = arena.address
        self._nbytes = arena.nbytes
        self._measuring = measuring

    def reduce(self, obj: Any) -> Any:
        """The `reducer_override` of a pickler: asked about every object that isn't builtin."""
        kind = type(obj)
        if kind is Tensor:
            try:
                offset = obj.data_ptr() - self._address
                if (
                    0 <= offset < self._nbytes
                    and obj.is_contiguous()
                    and not (obj.is_neg() or obj.is_conj() or obj.__dict__)
                ):
                    return _rebuild_tensor, (self.whole, _NAMES[obj.dtype], offset, *obj.shape)
            except (RuntimeError, KeyError):
                pass  # a layout without one piece of memory, or a dtype we refuse: told below
            return self._tensor(obj)
        if kind is np.ndarray or kind is np.memmap:
            return self._array(obj)
        if kind is Whole:
            return rebuild.same, (PickleBuffer(bytearray(1)),)
        if issubclass(kind, type):
            return self._class(obj)
        if issubclass(kind, Tensor):
            return self._subclass(obj)
        return NotImplemented

    def buffer(self, buffer: PickleBuffer) -> bool:
        """The `buffer_callback` of a pickler. True leaves the buffer in the pickle."""
        if self.table is None:  # the base, which is always pickled first
            self.table = []
            return False
        try:
            raw = np.frombuffer(buffer.raw(), np.uint8)
        except BufferError:  # not contiguous: pickle itself says so
            return True
        self.table += (self._lay(raw), raw.nbytes)
        return False

    def _lay(self, source: npt.NDArray[Any]) -> int:
        """Copy an array into the arena, in C order; its offset."""
        offset = self._arena.reserve(source.nbytes)
        if offset is None:
            return self._missed()
        if source.nbytes:
            self._arena.array_at(offset, source.shape, source.dtype)[...] = source
        return offset

    def _missed(self) -> int:
        if self._measuring:
            return 0
        raise NoRoom

    def _tensor(self, tensor: Tensor) -> Reduced:
        """A tensor of no subclass that isn't in the arena yet, or not as it is shown."""
        state = tensor.__dict__
        reduced = self._data(tensor)
        return (*reduced, state, None, None, rebuild.attributes) if state else reduced

    def _data(self, tensor: Tensor) -> Reduced:
        if tensor.requires_grad:
            tensor = tensor.detach()
        if not tensor.is_cpu:
            _refuse_device(tensor)
        if tensor.is_nested:
            return rebuild.nested, (list(tensor.unbind()),)
        layout = tensor.layout
        if layout is torch.sparse_coo:
            parts = tensor._indices(), tensor._values()
            return rebuild.coordinate, (*parts, tuple(tensor.shape), tensor.is_coalesced())
        if layout in _COMPRESSED:
            by_row = layout in (torch.sparse_csr, torch.sparse_bsr)
            outer = tensor.crow_indices() if by_row else tensor.ccol_indices()
            inner = tensor.col_indices() if by_row else tensor.row_indices()
            return rebuild.compressed, (outer, inner, tensor.values(), tuple(tensor.shape), layout)
        name = _NAMES.get(tensor.dtype)
        if name is None or layout is not torch.strided:
            raise BatchError(
                f"a tensor of {tensor.dtype} and {layout} can't leave a worker: "
                "return tensor.dequantize(), .int_repr() or .to_dense() instead"
            )
        if tensor.is_conj():
            tensor = tensor.resolve_conj()
        order = None if tensor.is_contiguous() else _memory_order(tensor)
        if order is not None:
            tensor = tensor.permute(order)
        shape = tensor.shape
        arena = self._arena
        offset = arena.used_bytes
        target = arena.empty(shape, tensor.dtype)
        if target is None:
            offset = self._missed()
        elif target.numel():
            if tensor.data_ptr() == 0:
                raise BatchError(
                    f"a {type(tensor).__name__} of shape {tuple(shape)} has no memory of its own "
                    "(a fake or functional tensor): return an ordinary CPU tensor"
                )
            _copy_bits(target, tensor)
        reduced = _rebuild_tensor, (self.whole, name, offset, *shape)
        if order is None:
            return reduced
        inverse = tuple(order.index(dim) for dim in range(len(order)))
        return rebuild.permuted, (_Reduced(reduced), inverse)

    def _subclass(self, tensor: Tensor) -> Any:
        kind = type(tensor)
        if (
            kind.__reduce_ex__ is not Tensor.__reduce_ex__
            or kind.__reduce__ is not Tensor.__reduce__
        ):
            return NotImplemented  # Parameter, jagged tensors, and whoever knows better
        if hasattr(kind, "__tensor_flatten__"):
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            plain = tensor.detach().as_subclass(Tensor)
        state = _state_of(tensor)
        reduced = rebuild.subclass, (plain, kind)
        return (*reduced, state, None, None, rebuild.attributes) if state else reduced

    def _array(self, array: npt.NDArray[Any]) -> Any:
        dtype = array.dtype
        if dtype.hasobject or dtype.kind not in "biufcSUVmM":
            return NotImplemented  # in the pickle, its tensors still out of band
        strides = None
        source: npt.NDArray[Any] = array
        flags = array.flags
        if not flags.c_contiguous and flags.f_contiguous:
            strides, source = array.strides, array.T
        offset: int | None = None
        if array.nbytes >= _WORTH_ASKING_BYTES and source.flags.c_contiguous:
            offset = self._arena.offset_of(array.ctypes.data, array.nbytes)
        if offset is None:
            offset = self._lay(source)
        spec = dtype if dtype.fields or dtype.subdtype or dtype.metadata else dtype.str
        return _rebuild_array, (self.whole, spec, offset, array.shape, strides)

    def _class(self, kind: type) -> Any:
        token = token_of(kind)
        if token is None:
            return NotImplemented
        return class_by_token, (token, kind.__module__, kind.__qualname__)


class _Reduced:
    """A call that is to be made when the skeleton is decoded, as an argument of another call."""

    __slots__ = ("_call",)

    def __init__(self, call: Reduced) -> None:
        self._call = call

    def __reduce__(self) -> Reduced:
        return self._call


def _copy_bits(target: Tensor, source: Tensor) -> None:
    """`target.copy_(source)` for every dtype, also those without arithmetic."""
    if source.dtype in _PLAIN:
        target.copy_(source)
        return
    carrier = getattr(torch, carrier_of(source.dtype).name)
    target.view(carrier).copy_(source.view(carrier))


def _memory_order(tensor: Tensor) -> tuple[int, ...] | None:
    """The order of dimensions in which a tensor is contiguous; None when it has gaps."""
    strides = tensor.stride()
    order = tuple(sorted(range(tensor.dim()), key=lambda dim: -strides[dim]))
    return order if tensor.permute(order).is_contiguous() else None


def _state_of(tensor: Tensor) -> dict[str, Any]:
    """What a user's subclass holds beside its data, in `__dict__` and in slots."""
    state = dict(tensor.__dict__)
    slots: list[str] = copyreg._slotnames(type(tensor))  # type: ignore[attr-defined]
    state.update((name, getattr(tensor, name)) for name in slots if hasattr(tensor, name))
    return state


def _refuse_device(tensor: Tensor) -> NoReturn:
    where = tensor.device.type
    if where == "meta":
        raise BatchError(
            f"a tensor of shape {tuple(tensor.shape)} is on the meta device: it has no values"
        )
    raise BatchError(
        f"a {where.upper()} tensor of shape {tuple(tensor.shape)} can't leave a worker: workers "
        f"must not touch {where.upper()}. Return CPU tensors and let the loader move them"
    )
