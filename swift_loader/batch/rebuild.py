"""What a skeleton calls when it is decoded. The names here are in every skeleton.

`base` is the array over the slot; whatever is built here is a view that keeps it alive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import unpack_from
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, from_numpy

from swift_loader.batch.arena import carrier_of
from swift_loader.batch.memmaps import reopen

__all__ = [
    "array",
    "attributes",
    "carrier",
    "compressed",
    "coordinate",
    "given_buffers",
    "lock",
    "nested",
    "number",
    "over_file",
    "permuted",
    "storage",
    "strided",
    "subclass",
    "tensor",
]

_CPU = torch.device("cpu")  # whatever the default device of this process is
#: what `carrier` found
_CARRIERS: dict[str, tuple[np.dtype[Any], torch.dtype | None]] = {}


def carrier(name: str) -> tuple[np.dtype[Any], torch.dtype | None]:
    """The numpy dtype of a torch dtype's bits, and the torch dtype where that differs."""
    found = _CARRIERS.get(name)
    if found is None:
        dtype: torch.dtype = getattr(torch, name)
        bits = carrier_of(dtype)
        alike = from_numpy(np.empty(0, bits)).dtype is dtype
        _CARRIERS[name] = found = (bits, None if alike else dtype)
    return found


def given_buffers(base: npt.NDArray[np.uint8], table: Sequence[int]) -> Iterator[Any]:
    """The out-of-band buffers of a skeleton: (offset, nbytes) after each other, -1 for the base."""
    for offset, nbytes in zip(table[::2], table[1::2], strict=True):
        yield base if nbytes < 0 else base[offset : offset + nbytes]


def tensor(base: npt.NDArray[np.uint8], name: str, offset: int, *shape: int) -> Tensor:
    """A contiguous tensor of the dtype with this name."""
    bits_dtype, dtype = _CARRIERS.get(name) or carrier(name)
    bits = from_numpy(np.ndarray(shape, bits_dtype, base, offset))
    return bits if dtype is None else bits.view(dtype)


def strided(
    base: npt.NDArray[np.uint8],
    name: str,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> Tensor:
    """A tensor that lies in memory that others lie in too; strides in bytes."""
    bits_dtype, dtype = _CARRIERS.get(name) or carrier(name)
    bits = from_numpy(np.ndarray(shape, bits_dtype, base, offset, strides))
    return bits if dtype is None else bits.view(dtype)


def over_file(name: str, place: tuple[Any, ...]) -> Tensor:
    """A tensor over a mapped file; `place` as `memmaps.reopen` takes it."""
    bits = from_numpy(np.asarray(reopen(*place)))
    dtype = carrier(name)[1]
    return bits if dtype is None else bits.view(dtype)


def number(base: npt.NDArray[np.uint8], kind: str, offset: int) -> Any:
    """An int or a float, of a format of `struct`."""
    return unpack_from(kind, base.data, offset)[0]


def array(
    base: npt.NDArray[np.uint8],
    dtype: Any,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
) -> npt.NDArray[Any]:
    """A numpy array; strides in bytes, None for C order."""
    view: npt.NDArray[Any] = np.ndarray(shape, dtype, base, offset, strides)
    return view


def lock(array: npt.NDArray[Any], _: Any) -> None:
    """Make an array read-only, as it was."""
    array.flags.writeable = False


def storage(plain: Tensor) -> torch.UntypedStorage:
    """The memory of a tensor of bytes."""
    return plain.untyped_storage()


def permuted(dense: Tensor, order: tuple[int, ...]) -> Tensor:
    """A tensor whose dimensions lie in memory in another order (channels last, say)."""
    return dense.permute(order)


def subclass(plain: Tensor, kind: type[Tensor]) -> Tensor:
    """A tensor as the subclass that it was."""
    return plain.as_subclass(kind)


def attributes(obj: Any, state: dict[str, Any]) -> None:
    """What the user had hung on a tensor."""
    for name, value in state.items():
        object.__setattr__(obj, name, value)


def coordinate(indices: Tensor, values: Tensor, shape: tuple[int, ...], coalesced: bool) -> Tensor:
    """A sparse tensor of the COO layout."""
    return torch.sparse_coo_tensor(
        indices,
        values,
        shape,
        device="cpu",
        is_coalesced=coalesced,
        check_invariants=False,
    )


def compressed(
    outer: Tensor, inner: Tensor, values: Tensor, shape: tuple[int, ...], layout: torch.layout
) -> Tensor:
    """A sparse tensor of the CSR, CSC, BSR or BSC layout."""
    return torch.sparse_compressed_tensor(
        outer, inner, values, shape, layout=layout, device="cpu", check_invariants=False
    )


def nested(parts: list[Tensor]) -> Tensor:
    """A nested tensor of the strided layout. It is a copy: torch offers no other way."""
    return torch.nested.as_nested_tensor(parts, layout=torch.strided, device=_CPU)
