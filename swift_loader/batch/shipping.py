"""Carries the user's objects to worker processes: once, in one piece of memory for all of them.

What can be imported goes by reference; classes and functions of `__main__`, lambdas and local ones
go by value. Arrays and tensors lie behind the pickle, and are views over the region when unpacked,
so a worker that maps it privately shares every page that it does not write to. A `numpy.memmap`
travels as its file name. What pickle can't do, `dill` may.

    header      four int64: bytes of each pickle; how many numbers each table has
    tracker     pickle: the resource tracker of the process that packs
    parts       pickle
    table       offset and nbytes of each out-of-band buffer, int64; (0, -1) is the data as a whole
    table       the same of large `bytes`, see `swift_loader.batch.large`
    data        the buffers, each aligned
"""

from __future__ import annotations

import importlib
import io
import mmap
import pickle
import struct
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from threading import Lock, RLock
from types import GeneratorType
from typing import Any

import dill
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swift_loader.batch import handles, memmaps, rebuild
from swift_loader.batch.arena import ALIGNMENT_BYTES, aligned_bytes, carrier_of
from swift_loader.batch.blame import blame
from swift_loader.batch.byvalue import ByValue
from swift_loader.batch.handles import Shipment, follow_tracker, shipping, tracker
from swift_loader.batch.large import hold, large_as_arrays
from swift_loader.batch.overlaps import Extent, Span, extent_of, folds, shared_spans
from swift_loader.batch.rebuild import given_buffers
from swift_loader.batch.reduce import BASE, DTYPE_NAMES, PlainPickler, Reducer, has_gaps, is_plain
from swift_loader.errors import BatchError, ShippingError

__all__ = ["Payload", "hold_large", "pack", "unpack"]

_HEADER = struct.Struct("<4q")
_PIECE_BYTES = 1 << 20
#: what would arrive as something else than the user means, if dill had it
_BOUND_HERE = (
    *(type(Lock()), type(RLock()), GeneratorType, io.FileIO, io.TextIOWrapper),
    *(io.BufferedReader, io.BufferedWriter, io.BufferedRandom),
)


class Payload:
    """Packed objects: `nbytes` in all, laid into a region by `write`.

    `kept` is what workers open here. It must live as long as one of them may unpack the region.
    `pickle_bytes`: of the parts, without what lies behind.
    """

    def __init__(
        self,
        tracker: bytes,
        parts: bytes,
        tables: tuple[list[int], list[int]],
        sources: list[tuple[int, npt.NDArray[np.uint8]]],
        kept: list[object],
    ) -> None:
        self.kept = kept
        self.keep_alive: object = None
        self.pickle_bytes = len(parts)
        self._tables = tables
        self._sources = sources
        numbers = [*tables[0], *tables[1]]
        header = _HEADER.pack(len(tracker), len(parts), *map(len, tables))
        self._head = header, tracker, parts, struct.pack(f"<{len(numbers)}q", *numbers)
        end = max((offset + source.nbytes for offset, source in sources), default=0)
        self._data_start = aligned_bytes(sum(map(len, self._head)))
        self.nbytes = self._data_start + end

    def write(self, region: memoryview | mmap.mmap) -> None:
        """Copy everything into `region`: writable, of at least `nbytes`, zeroed or not."""
        target = np.frombuffer(region, np.uint8)
        at = 0
        for piece in self._head:
            target[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)
        data = target[self._data_start :]
        for offset, source in self._sources:
            data[offset : offset + source.nbytes] = source

    def lies_in(self, region: memoryview | mmap.mmap) -> bool:
        """Whether `region`, which another payload was written to, has the same in it.

        The resource tracker does not count: it may have begun to run meanwhile.
        """
        _, parts, *tables, data = _apart(region)
        return (
            [list(table) for table in tables] == list(self._tables)
            and parts.tobytes() == self._head[2]
            and all(_begins_with(data[offset:], source) for offset, source in self._sources)
        )

    def __bytes__(self) -> bytes:
        region = bytearray(self.nbytes)
        self.write(memoryview(region))
        return bytes(region)


def pack(parts: Mapping[str, Any], *, elsewhere: bool = False) -> Payload:
    """Pickle `parts`; their arrays stay where they are until the payload is written.

    What processes share goes as a handle, and is refused with `elsewhere`: for other machines.

    Raises `ShippingError`, which names what can't travel as `part['key'].attribute`, with the fix.
    """
    try:
        return _pack(dict(parts), elsewhere)
    except Exception as error:
        raise ShippingError(blame(parts, partial(_failure, elsewhere), error)) from error


def unpack(region: memoryview | mmap.mmap) -> dict[str, Any]:
    """What `pack` was given. Arrays and tensors are views over `region`, and keep it.

    They are writable if it is. Raises whatever importing or unpickling the user's things raises.
    """
    tracker, text, table, _, base = _apart(region)
    follow_tracker(pickle.loads(tracker.data))
    reader = _Unpickler(io.BytesIO(text.data), buffers=given_buffers(base, table))
    parts: dict[str, Any] = reader.load()
    return parts


def hold_large(region: memoryview | mmap.mmap, payload: Hashable) -> None:
    """See `swift_loader.batch.large.hold`; `region` is what `pack` gave."""
    *_, large, base = _apart(region)
    spans = zip(large[::2], large[1::2], strict=True)
    hold(payload, [base[offset : offset + nbytes] for offset, nbytes in spans])


def _begins_with(data: npt.NDArray[np.uint8], source: npt.NDArray[np.uint8]) -> bool:
    """In pieces, as comparing takes memory."""
    if len(data) < len(source):
        return False
    pieces = range(0, len(source), _PIECE_BYTES)
    return all(
        np.array_equal(data[: len(source)][at : at + _PIECE_BYTES], source[at : at + _PIECE_BYTES])
        for at in pieces
    )


def _apart(
    region: memoryview | mmap.mmap,
) -> tuple[Any, Any, tuple[int, ...], tuple[int, ...], Any]:
    """Both pickles, both tables, data."""
    whole = np.frombuffer(region, np.uint8)
    *nbytes, in_table, in_large = _HEADER.unpack_from(whole.data)
    parts = _HEADER.size + nbytes[0]
    end = parts + nbytes[1]
    numbers = struct.unpack_from(f"<{in_table + in_large}q", whole.data, end)
    data = whole[aligned_bytes(end + 8 * len(numbers)) :]
    tables = numbers[:in_table], numbers[in_table:]
    return whole[_HEADER.size : parts], whole[parts:end], *tables, data


def _pack(parts: dict[str, Any], elsewhere: bool) -> Payload:
    try:
        return _dump(PlainPickler, parts, elsewhere)
    except (BatchError, RecursionError):
        raise
    except Exception:  # noqa: BLE001 (dill may do it; what it says is what counts then)
        return _dump(dill.Pickler, parts, elsewhere)


def _dump(kind: Any, parts: dict[str, Any], elsewhere: bool) -> Payload:
    gatherer = _Gatherer(elsewhere)
    payload = _dumped(kind, parts, gatherer)
    spans = shared_spans(gatherer.extents())
    if not spans:
        return payload
    whole = _dumped(kind, parts, _Gatherer(elsewhere, spans))
    whole.keep_alive = payload  # what was made for it alone may lie in the spans
    return whole


def _dumped(kind: Any, parts: dict[str, Any], gatherer: _Gatherer) -> Payload:
    with shipping(gatherer.shipment):
        return _written(kind, parts, gatherer)


def _written(kind: Any, parts: dict[str, Any], gatherer: _Gatherer) -> Payload:
    shipment = gatherer.shipment
    file = io.BytesIO()
    given: list[pickle.PickleBuffer] = []
    pickler = kind(file, 5, buffer_callback=given.append)
    pickler.reducer_override = gatherer.reduce
    arguments, found = large_as_arrays(parts.get("dataset_kwargs") or {})
    pickler.dump({**parts, "dataset_kwargs": arguments} if found else parts)
    table = gatherer.lay_buffers(given)
    large = [number for one in found for number in gatherer.place_of(one.array)]
    own = pickle.dumps(None if shipment.elsewhere else tracker(), 5)
    return Payload(own, file.getvalue(), (table, large), gatherer.sources, shipment.kept)


def _failure(elsewhere: bool, part: Any) -> Exception | None:
    """Why one thing alone can't travel, None if it can."""
    try:
        _pack({"it": part}, elsewhere)
    except Exception as error:  # noqa: BLE001 (it is what was asked for)
        return error
    return None


class _Unpickler(pickle.Unpickler):
    """Reads what either of them wrote, at the speed of C."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (
            "__builtin__",
            "__main__",
        ):  # dill's word for the main module's globals
            return importlib.import_module("__main__").__dict__
        return super().find_class(module, name)


class _Gatherer(Reducer):
    """Notes where buffers will lie. They stay where they are, and are kept.

    `sources`: offset and bytes of each. `spans`: memory that several share, which is laid whole.
    """

    def __init__(self, elsewhere: bool, spans: Sequence[Span] = ()) -> None:
        by_value = ByValue(keeps=True)
        super().__init__(by_value)
        self.shipment = Shipment(elsewhere)
        self._take_apart = by_value.reduce
        self.sources: list[tuple[int, npt.NDArray[np.uint8]]] = []
        self._shared_files = memmaps.SharedFiles()
        self._spans = {part.key: span for span in spans for part in span.parts}
        self._with_gaps: list[Extent] = []
        self._folded: dict[Any, int] = {}
        self._offset_of: dict[tuple[int, int], int] = {}  # by first address and the one behind
        self._end = 0

    def extents(self) -> list[Extent]:
        """Where the arrays and tensors lie that were seen."""
        return [Extent(*place) for place in self._offset_of] + self._with_gaps

    def reduce(self, obj: Any) -> Any:
        if isinstance(obj, type):  # not by its token: that is for the way back
            return self._take_apart(obj)
        if isinstance(obj, np.ndarray):
            by_name = memmaps.reduce(obj)
            return super().reduce(obj) if by_name is None else by_name
        if isinstance(obj, _BOUND_HERE):
            kind = type(obj)
            raise ShippingError(f"{kind.__module__}.{kind.__qualname__} belongs to one process")
        if (
            isinstance(obj, torch.UntypedStorage)
            and obj.device.type == "cpu"
            and not obj.is_shared()
        ):
            return rebuild.storage, (torch.empty(0, dtype=torch.uint8, device="cpu").set_(obj),)
        reduced = super().reduce(obj)
        return handles.reduce(obj, self.shipment) if reduced is NotImplemented else reduced

    def state_of(self, tensor: Tensor) -> dict[str, Any]:
        state = super().state_of(tensor)
        return {**state, "requires_grad": True} if tensor.requires_grad else state

    def _numbers(self, tensor: Tensor) -> Any:
        reduced = handles.reduce_shared_tensor(tensor, self.shipment)
        if reduced is None and self._shared_files and not self.shipment.elsewhere:
            reduced = self._by_name(tensor)
        if reduced is not None:
            return reduced
        if tensor.dtype in DTYPE_NAMES and has_gaps(tensor):
            bits = _bits_of(tensor.detach())
            offset = self._offset_in_span(bits)
            if offset is not None:
                strided = BASE, DTYPE_NAMES[tensor.dtype], offset, bits.shape, bits.strides
                return rebuild.strided, strided
        return super()._numbers(tensor)

    def _by_name(self, tensor: Tensor) -> Any:
        """How to pickle a tensor over a mapped file; None for any other."""
        if not tensor.is_cpu or tensor.layout is not torch.strided or tensor.is_nested:
            return None
        if tensor.dtype not in DTYPE_NAMES or tensor.is_conj() or tensor.is_neg():
            return None
        if not tensor.numel():
            return None
        bits = _bits_of(tensor.detach())
        start, end, _ = extent_of(bits)
        found = self._shared_files.reduce(start, end)
        if found is None:
            return None
        view = np.ndarray, bits.shape, bits.dtype, 0, bits.strides
        return rebuild.over_file, (DTYPE_NAMES[tensor.dtype], (*found, view))

    def _array(self, array: npt.NDArray[Any]) -> Any:
        reduced = self._elements(array)
        if reduced is NotImplemented or array.flags.writeable:
            return reduced
        return (*reduced, True, None, None, rebuild.lock)

    def _elements(self, array: npt.NDArray[Any]) -> Any:
        if is_plain(array.dtype) and not array.flags.forc and array.size:
            offset = self._offset_in_span(array)
            if offset is not None:
                return rebuild.array, (BASE, array.dtype, offset, array.shape, array.strides)
        return super()._array(array)

    def _offset_in_span(self, array: npt.NDArray[Any]) -> int | None:
        """Where the first element of an array with gaps lies, if it is laid as it is: where it
        shares memory, with others or in itself.
        """
        extent = extent_of(array)
        key = extent.key
        span = self._spans.get(key)
        if span is not None:
            return self._lay_span(span) + array.ctypes.data - span.whole.start
        self._with_gaps.append(extent)
        if not folds(array):
            return None
        offset = self._folded.get(key)  # its elements share memory: an expanded tensor
        if offset is None:
            lead = extent.start % ALIGNMENT_BYTES
            offset = self._folded[key] = self._lay(np.asarray(extent), lead)
        return offset + array.ctypes.data - extent.start

    def lay_array(self, array: npt.NDArray[Any]) -> int:
        array = np.ascontiguousarray(array)
        if array.nbytes == 0:
            return 0
        start = array.ctypes.data
        place = start, start + array.nbytes
        offset = self._offset_of.get(place)
        if offset is None:
            span = self._spans.get(place)
            if span is None:
                offset = self._lay(array.reshape(-1).view(np.uint8), 0)
            else:
                offset = self._lay_span(span) + start - span.whole.start
            self._offset_of[place] = offset
        return offset

    def _lay_span(self, span: Span) -> int:
        place = span.whole.key
        offset = self._offset_of.get(place)
        if offset is None:
            # An address that is a multiple of 8, say, stays one.
            lead = span.whole.start % ALIGNMENT_BYTES
            offset = self._offset_of[place] = self._lay(np.asarray(span.whole), lead)
        return offset

    def _lay(self, source: npt.NDArray[np.uint8], lead: int) -> int:
        offset = self._end + lead
        self.sources.append((offset, source))
        self._end = aligned_bytes(offset + source.nbytes)
        return offset

    def place_of(self, array: npt.NDArray[Any]) -> tuple[int, int]:
        """Offset and nbytes of an array that was laid."""
        return self.lay_array(array), array.nbytes

    def lay_tensor(self, tensor: Tensor) -> int:
        return self.lay_array(_bits_of(tensor.contiguous()))


def _bits_of(tensor: Tensor) -> npt.NDArray[Any]:
    """The memory of a tensor as it lies there."""
    bits: torch.dtype = getattr(torch, carrier_of(tensor.dtype).name)
    array: npt.NDArray[Any] = tensor.view(bits).numpy()
    return array
