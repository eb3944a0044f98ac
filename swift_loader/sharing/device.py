"""Batches on a CUDA device, shared by CUDA's inter-process memory handles.

The producer copies each batch into a slot on the device, waits for the copy, and only then speaks
of it. A slot is exported once for each consumer, which opens it once; so what the driver has to
keep track of is bounded by the slots and does not grow with the batches. A consumer gives a slot
back when its current stream has passed the point at which the last tensor over it was freed; who
uses a tensor on another stream waits for that stream before letting go of it. Numeric arrays
arrive as tensors.

Layout of a slot: the batch's tensors one after the other, each on a multiple of 512 bytes. The
skeleton is a pickle in which a tensor is ``(offset, dtype, shape)`` as a persistent id.
"""

from __future__ import annotations

import io
import pickle
import weakref
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from swift_loader.errors import BatchError
from swift_loader.sharing.messages import Region
from swift_loader.sharing.regions import RegionTable, SharedBatch, SharedRegion

__all__ = ["DeviceRegion", "DeviceSlots"]

_ALIGNMENT_BYTES = 512
_SLACK = 8  # a new slot is an eighth larger than needed: variable batches settle soon


class DeviceSlots:
    """The producer's slots on one device."""

    def __init__(self, device: torch.device, table: RegionTable) -> None:
        if device.type != "cuda":
            raise BatchError(f"batches can be shared on a CUDA device or on the CPU, not {device}")
        self._device = device
        self._table = table
        self._free: deque[_Slot] = deque()
        self._largest_bytes = 0

    def put(self, batch: Any) -> SharedBatch:
        """Copy a batch (of CPU or CUDA tensors and numeric arrays) into a slot."""
        file = io.BytesIO()
        placer = _Placer(file)
        placer.dump(batch)
        if not placer.nbytes:
            raise BatchError("a batch without tensors can't be shared on a device")
        slot = self._take(placer.nbytes)
        for offset, tensor in placer.placed:
            _piece(slot.memory, offset, tensor.dtype, tensor.shape).copy_(tensor, non_blocking=True)
        torch.cuda.current_stream(self._device).synchronize()
        lease = _Held()
        weakref.finalize(lease, self._free.append, slot).atexit = False
        return SharedBatch(lease, slot.region, placer.nbytes, file.getvalue())

    def _take(self, nbytes: int) -> _Slot:
        while self._free:
            slot = self._free.popleft()
            if slot.memory.nbytes >= nbytes:
                return slot
            self._table.gone.append(slot.region.number)
        self._largest_bytes = max(self._largest_bytes, nbytes + nbytes // _SLACK)
        memory = torch.empty(self._largest_bytes, dtype=torch.uint8, device=self._device)
        return _Slot(memory, self._table)


class DeviceRegion:
    """A consumer's end of a slot."""

    def __init__(self, region: Region) -> None:
        rebuild, arguments = pickle.loads(region.export)
        self._memory: Tensor = rebuild(*arguments)

    def open(self, skeleton: bytes, used_bytes: int, *, copied: bool) -> tuple[Any, Any]:
        """``(batch, holder)``: the holder lives as long as any tensor over the slot."""
        holder = _Held()
        if copied:
            base = self._memory[:used_bytes].clone()
        else:
            holder.memory = self._memory
            holder.__cuda_array_interface__ = {
                "shape": (self._memory.nbytes,),
                "typestr": "|u1",
                "data": (self._memory.data_ptr(), False),
                "version": 3,
            }
            base = torch.as_tensor(holder, device=self._memory.device)
        return _Opener(io.BytesIO(skeleton), base).load(), holder

    def ended(self) -> torch.cuda.Event:
        """Marks the point on the current stream behind which nothing reads the batch."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._memory.device))
        return event

    def close(self) -> None:
        """Nothing: the driver closes the handle with the last tensor."""


class _Held:
    """An object that can be referred to weakly, and can carry what it keeps alive."""

    memory: Tensor
    __cuda_array_interface__: dict[str, Any]


class _Slot:
    def __init__(self, memory: Tensor, table: RegionTable) -> None:
        self.memory = memory
        number = table.next_number()

        def announce() -> Region:
            export = pickle.dumps(reduce_tensor(memory), 5)  # type: ignore[no-untyped-call]
            return Region(number, memory.nbytes, str(memory.device), export)

        self.region = SharedRegion(number, announce, None)


class _Placer(pickle.Pickler):
    """Gives every tensor a place, and pickles the rest."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, 5)
        self.placed: list[tuple[int, Tensor]] = []
        self.nbytes = 0

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, np.ndarray) and obj.dtype.kind in "biufc":
            tensor = torch.from_numpy(np.ascontiguousarray(obj))
        elif type(obj) is Tensor and obj.layout is torch.strided:
            tensor = obj.detach()
        elif isinstance(obj, Tensor):
            raise BatchError(
                f"a {type(obj).__name__} of {obj.layout} can't be shared on a device: "
                "return plain dense tensors, or leave out device="
            )
        else:
            return None
        offset = self.nbytes
        self.placed.append((offset, tensor))
        self.nbytes += -(-tensor.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        return offset, tensor.dtype, tuple(tensor.shape)


class _Opener(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, base: Tensor) -> None:
        super().__init__(file)
        self._base = base

    def persistent_load(self, pid: Any) -> Tensor:
        offset, dtype, shape = pid
        return _piece(self._base, offset, dtype, shape)


def _piece(base: Tensor, offset: int, dtype: torch.dtype, shape: Any) -> Tensor:
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return base[offset : offset + nbytes].view(dtype).view(shape)
