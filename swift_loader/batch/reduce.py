"""How tensors, arrays and classes are pickled: as calls of `rebuild`, their numbers elsewhere."""

from __future__ import annotations

import copyreg
from pickle import PickleBuffer, Pickler
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swift_loader.batch import rebuild
from swift_loader.batch.byvalue import ByValue
from swift_loader.batch.identity import class_by_token, class_here, number_here, token_of
from swift_loader.errors import BatchError

__all__ = ["BASE", "DTYPE_NAMES", "PlainPickler", "Reducer", "has_gaps", "is_plain", "why_not_cpu"]

Reduced = tuple[Any, ...]

_COMPRESSED = {torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}
_QUANTIZED = {torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4}
DTYPE_NAMES: dict[torch.dtype, str] = {
    dtype: str(dtype).removeprefix("torch.")
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and dtype not in _QUANTIZED
}


#: Stands for the base in a skeleton: goes out of band, and where the skeleton is read the base
#: comes in. Costs a byte, and no call.
BASE = PickleBuffer(bytearray(1))


class PlainPickler(Pickler):
    """The C pickler; a subclass, so that it takes a `reducer_override`."""


class Reducer:
    """Tells a pickler how to take apart what has large buffers; where these go, siblings decide.

    `by_value` takes apart what can't be imported elsewhere, if that is wanted.
    """

    def __init__(self, by_value: ByValue | None = None) -> None:
        self._by_value = by_value

    def lay_array(self, array: npt.NDArray[Any]) -> int:
        """Lay down the elements in C order; returns their offset."""
        raise NotImplementedError

    def lay_tensor(self, tensor: Tensor) -> int:
        """The same for a strided tensor with values on the CPU."""
        raise NotImplementedError

    def reduce(self, obj: Any) -> Any:
        """The `reducer_override` of a pickler: asked about every object that isn't builtin."""
        kind = type(obj)
        if kind is Tensor:
            return self._tensor(obj)
        if kind is np.ndarray or kind is np.memmap:
            return self._array(obj)
        if issubclass(kind, Tensor):
            return self._subclass(obj)
        if issubclass(kind, type):
            token = token_of(obj)
            if token is not None:
                return class_by_token, (token, obj.__module__, obj.__qualname__)
            number = number_here(obj)
            if number is not None:
                return class_here, (number,)
        return NotImplemented if self._by_value is None else self._by_value.reduce(obj)

    def lay_buffers(self, buffers: list[PickleBuffer]) -> list[int]:
        """Lay down what a pickler gave out of band: offset and nbytes of each, (0, -1) for a base.

        Buffers of their own come from objects unknown here, such as data frames.
        """
        table: list[int] = []
        for buffer in buffers:
            if buffer is BASE:
                table += (0, -1)
                continue
            raw = np.frombuffer(buffer.raw(), np.uint8)
            table += (self.lay_array(raw), raw.nbytes)
        return table

    def state_of(self, tensor: Tensor) -> dict[str, Any]:
        """What goes along with the numbers."""
        return attributes_of(tensor)

    def _tensor(self, tensor: Tensor) -> Reduced:
        """A tensor of no subclass that isn't in the arena yet, or not as it is shown."""
        state = self.state_of(tensor)
        reduced = self._numbers(tensor)
        return (*reduced, state, None, None, rebuild.attributes) if state else reduced

    def _numbers(self, tensor: Tensor) -> Reduced:
        if tensor.requires_grad:
            tensor = tensor.detach()
        if not tensor.is_cpu:
            raise BatchError("{}. {}.".format(*why_not_cpu(tensor)))
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
        name = DTYPE_NAMES.get(tensor.dtype)
        if name is None or layout is not torch.strided:
            raise BatchError(
                f"a tensor of {tensor.dtype} and {layout} has no form to be sent in: "
                "return tensor.dequantize(), .int_repr() or .to_dense() instead"
            )
        if tensor.numel() and not tensor.data_ptr():
            raise BatchError(
                f"a tensor of shape {tuple(tensor.shape)} has no memory (a fake one, or one "
                "whose storage was freed): return an ordinary CPU tensor"
            )
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        order = None if tensor.is_contiguous() else _memory_order(tensor)
        if order is None:
            return rebuild.tensor, (BASE, name, self.lay_tensor(tensor), *tensor.shape)
        inverse = tuple(order.index(dim) for dim in range(len(order)))
        return rebuild.permuted, (tensor.permute(order), inverse)

    def _subclass(self, tensor: Tensor) -> Any:
        kind = type(tensor)
        if (
            kind.__reduce_ex__ is not Tensor.__reduce_ex__
            or kind.__reduce__ is not Tensor.__reduce__
        ):
            return NotImplemented  # Parameter, jagged tensors, and whoever knows better
        if hasattr(kind, "__tensor_flatten__"):
            return NotImplemented
        with torch.DisableTorchFunctionSubclass():
            plain = tensor.detach().as_subclass(Tensor)
        state = self.state_of(tensor)
        reduced = rebuild.subclass, (plain, kind)
        return (*reduced, state, None, None, rebuild.attributes) if state else reduced

    def _array(self, array: npt.NDArray[Any]) -> Any:
        dtype = array.dtype
        if not is_plain(dtype):
            return NotImplemented  # in the pickle, its tensors still out of band
        strides = None
        source: npt.NDArray[Any] = array
        flags = array.flags
        if not flags.c_contiguous and flags.f_contiguous:
            strides, source = array.strides, array.T
        spec = dtype if dtype.fields or dtype.metadata else dtype.str
        return rebuild.array, (BASE, spec, self.lay_array(source), array.shape, strides)


def has_gaps(tensor: Tensor) -> bool:
    """Whether it is an ordinary tensor on the CPU with other elements between its own."""
    if not tensor.is_cpu or tensor.layout is not torch.strided or tensor.is_nested:
        return False
    if tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg() or not tensor.data_ptr():
        return False
    return _memory_order(tensor) is None


def is_plain(dtype: np.dtype[Any]) -> bool:
    """Whether the bytes of an array are all that it holds."""
    return not dtype.hasobject and dtype.kind in "biufcSUVmM"


def _memory_order(tensor: Tensor) -> tuple[int, ...] | None:
    """The order of dimensions in which a tensor is contiguous; None when it has gaps."""
    strides = tensor.stride()
    order = tuple(sorted(range(tensor.dim()), key=lambda dim: -strides[dim]))
    return order if tensor.permute(order).is_contiguous() else None


def attributes_of(tensor: Tensor) -> dict[str, Any]:
    """What a tensor holds beside its data, in `__dict__`, and of a user's subclass in slots."""
    if type(tensor) is Tensor:
        return tensor.__dict__
    state = dict(tensor.__dict__)
    slots: list[str] = copyreg._slotnames(type(tensor))  # type: ignore[attr-defined]
    state.update((name, getattr(tensor, name)) for name in slots if hasattr(tensor, name))
    return state


def why_not_cpu(tensor: Tensor) -> tuple[str, str]:
    """What is wrong with a tensor on another device, and the fix."""
    where = tensor.device.type
    what = f"a {where.upper()} tensor of shape {tuple(tensor.shape)}"
    if where == "meta":
        return f"{what} has no values", "Return tensors with values, on the CPU"
    return (
        f"{what} was made in a worker, and workers must not touch {where.upper()}",
        "Return CPU tensors and let the loader move them to the device",
    )
