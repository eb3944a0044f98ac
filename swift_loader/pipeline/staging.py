"""Batches onto the device, ahead of the training loop. Role: the stager thread.

Takes batches from the pipeline in order, moves them, and keeps up to `max_nb_batch_on_device` that
the loop has not taken yet. It sends no message; it wakes the training thread, and is woken by it.

On CUDA the copies go over a stream of their own, from slots that were pinned once (page-locked
memory is what makes a copy asynchronous), so they run beside the loop's kernels. An event after the
copy keeps the slot until it is read, and makes the loop's stream wait before it uses the batch
(the scheme of NVIDIA apex's `data_prefetcher`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from swift_loader.batch.tree import dense_parts, map_leaves, walk
from swift_loader.errors import ClosedError
from swift_loader.order.part import EpochPart, Number
from swift_loader.pipeline.item import Item
from swift_loader.telemetry.ranges import COPY, profiled, ranged
from swift_loader.transport.memory import Mapping as MappedMemory

__all__ = ["Staged", "Stager", "Upstream", "move", "pin_mapping"]

_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every device


class Upstream(Protocol):
    """What the stager takes from: the pipeline."""

    def next(self, part: EpochPart) -> tuple[Number, Item] | None: ...


@dataclass(slots=True)
class Staged:
    """A batch on the device, or the end of the epoch (no number), or what ended the pipeline.

    An error in the place of a batch is its item's `fault`.
    """

    number: Number | None = None
    item: Item | None = None
    batch: Any = None
    error: BaseException | None = None
    to_device_s: float = 0.0
    copied: Any = None  # a torch.cuda.Event


def move(batch: Any, device: torch.device) -> Any:
    """`batch` with every tensor and numeric array on `device`, arrays as tensors.

    Containers keep their type. An object with a method `to` moves itself; all else stays as it is.
    Raises `BatchError` where the batch holds itself.
    """

    # Elsewhere than on CUDA nobody would know when the slot has been read.
    non_blocking = device.type == "cuda"

    def moved(leaf: Any) -> Any:
        tensor = leaf if isinstance(leaf, torch.Tensor) else _as_tensor(leaf)
        if tensor is not None:
            return tensor.to(device, non_blocking=non_blocking)
        return leaf.to(device) if _moves_itself(leaf) else leaf

    return map_leaves(moved, batch, whole=_moves_itself)


def _moves_itself(obj: Any) -> bool:
    """TensorDict, packed sequences and the like know how."""
    return callable(getattr(obj, "to", None)) and not isinstance(obj, type)


def _as_tensor(leaf: Any) -> torch.Tensor | None:
    """A numeric array as a tensor over its memory, where torch has its dtype."""
    if type(leaf) not in (np.ndarray, np.memmap) or leaf.dtype.kind not in "biufc":
        return None
    if not leaf.dtype.isnative or any(stride < 0 for stride in leaf.strides):
        leaf = np.ascontiguousarray(leaf, leaf.dtype.newbyteorder("="))
    try:
        return torch.from_numpy(leaf)
    except TypeError:  # a long double, which torch has not
        return None


def pin_mapping(device: torch.device, mapping: MappedMemory, _fd: int) -> None:
    """Page-lock a slot's mapping for CUDA, once, for as long as it is mapped.

    Where the driver refuses (the limit of locked memory), copies are slower and still right.
    """
    address = np.frombuffer(mapping, np.uint8).ctypes.data
    cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    with torch.cuda.device(device):  # or each rank would open a context on the first device
        if int(cudart.cudaHostRegister(address, len(mapping), _PORTABLE)) == 0:
            mapping.before_unmap = partial(cudart.cudaHostUnregister, address)
            return
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=device)  # takes the error, or this thread's next kernel would


class Stager:
    """See the module's text. `begin`, `next` and `close` are the training thread's."""

    def __init__(
        self,
        source: Upstream,
        device: torch.device,
        to_device: Callable[[Any, torch.device], Any] | None,
        max_staged: int,
    ) -> None:
        self._source = source
        self._device = device
        self._move = to_device or move
        self._max_staged = max_staged
        self._cuda = device.type == "cuda"
        self._stream: Any = None
        if self._cuda:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copying: deque[Staged] = deque()  # their slots are being read by the device
        self._changed = threading.Condition()
        self._staged: deque[Staged] = deque()
        self._part: EpochPart | None = None
        self._idle = True  # at the end of an epoch, or after an error: until the loop goes on
        self._open = True
        self._thread = threading.Thread(target=self._run, name="swift_loader-stager", daemon=True)
        self._thread.start()

    def begin(self, part: EpochPart) -> None:
        """The pipeline delivers `part` now; what is staged of another epoch is dropped."""
        with self._changed:
            self._part = part
            self._staged.clear()
            self._idle = False
            self._changed.notify_all()

    def next(self) -> Staged | None:
        """The next batch on the device, or None at the epoch's end; see `Pipeline.next`."""
        with self._changed:
            while not self._staged:
                if not self._open:
                    raise ClosedError("the loader is closed; build a new one to go on")
                if self._idle:  # an error was raised before; the loop goes on
                    self._idle = False
                    self._changed.notify_all()
                self._changed.wait()
            staged = self._staged.popleft()
            if staged.number is None and staged.error is None:
                self._staged.append(staged)  # the end stays the end
                return None
            self._changed.notify_all()
        if staged.error is not None:
            raise staged.error
        if staged.copied is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(staged.copied)
            _record_stream(staged.batch, current)
        return staged

    @property
    def depth(self) -> int:
        """Batches that are staged."""
        return len(self._staged)

    @property
    def is_current(self) -> bool:
        """Whether it is the stager's thread that asks."""
        return self._thread is threading.current_thread()

    def close(self) -> None:
        """End the thread; the pipeline must be closed already, or the thread may be waiting."""
        with self._changed:
            self._open = False
            self._changed.notify_all()
        self._thread.join()
        # An iterator may be held for long, and keeps only an end or an error that it has not said.
        self._staged = deque(staged for staged in self._staged if staged.number is None)

    # ---- the thread

    def _run(self) -> None:
        with self._on_stream():
            while True:
                with self._changed:
                    while self._open and (self._idle or len(self._staged) >= self._max_staged):
                        self._changed.wait()
                    if not self._open:
                        break
                    part = self._part
                assert part is not None  # idle until the first
                staged = self._stage(part)
                with self._changed:
                    if part is not self._part:
                        continue  # nobody iterates that epoch any more
                    self._idle = staged.number is None
                    self._staged.append(staged)
                    self._changed.notify_all()
        if self._stream is not None:
            self._stream.synchronize()
        self._copying.clear()

    def _stage(self, part: EpochPart) -> Staged:
        self._let_go()
        try:
            found = self._source.next(part)
            if found is None:
                return Staged()
        except BaseException as error:  # noqa: BLE001 - the training loop gets it
            return Staged(error=error)
        number, item = found
        if item.fault is not None:
            return Staged(number, item)
        began = time.perf_counter()
        try:
            if profiled():
                with ranged(COPY):
                    batch = self._move(item.batch, self._device)
            else:
                batch = self._move(item.batch, self._device)
        except BaseException as error:  # noqa: BLE001 - the training loop gets it, in its place
            item.fault, item.batch = error, None
            return Staged(number, item)
        item.on_device_at_s = time.perf_counter()
        staged = Staged(number, item, batch, to_device_s=item.on_device_at_s - began)
        if self._stream is not None:
            staged.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            staged.copied.record(self._stream)
            self._copying.append(dataclasses.replace(staged, batch=item.batch))
        item.batch = None  # only the copy on its way still holds the slot
        return staged

    def _let_go(self) -> None:
        """Forget the host batches whose copies have ended: their slots are free again."""
        while self._copying and self._copying[0].copied is not None:
            if len(self._copying) > self._max_staged + 1:
                self._copying[0].copied.synchronize()
            elif not self._copying[0].copied.query():
                return
            self._copying.popleft()

    def _on_stream(self) -> AbstractContextManager[Any]:
        if self._stream is None:
            return contextlib.nullcontext()
        torch.cuda.set_device(self._device)
        return torch.cuda.stream(self._stream)


def _record_stream(batch: Any, stream: torch.cuda.Stream) -> None:
    """The allocator must not hand the memory out before `stream` is done with it."""
    for leaf in walk(batch):
        if isinstance(leaf, torch.Tensor):
            for dense in dense_parts(leaf):
                if dense.is_cuda:
                    dense.record_stream(stream)
        elif hasattr(leaf, "record_stream") and not isinstance(leaf, type):
            leaf.record_stream(stream)  # a graph of PyTorch Geometric, for one
