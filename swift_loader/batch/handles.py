"""What processes of one machine share travels as a handle, and is shared on the other side too.

`multiprocessing` lets its queues, semaphores, shared values and proxies be pickled while it spawns
a process, and asks an object that it calls `popen` to pass descriptors on. A `Shipment` takes that
object's place: a descriptor travels as a `Handle`, which the worker opens through ``/proc``, and
what it belongs to is kept open for workers that start later. Shared tensors and `SharedList` do the
same.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from multiprocessing import context, resource_tracker, util
from multiprocessing.heap import Arena
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_storage_fd

from swift_loader.errors import ShippingError

__all__ = [
    "Handle",
    "Shipment",
    "current",
    "follow_tracker",
    "reduce",
    "reduce_shared_tensor",
    "shipping",
    "tracker",
]

_OPENS_OTHERS = sys.platform == "linux"  # through /proc
_ELSEWHERE = "workers on other machines can't share it"
_OF_SHARED_CTYPES = "_wrapper"


@dataclass(frozen=True, slots=True)
class Handle:
    """An open file of another process: good while that one has it open."""

    pid: int
    fd: int
    identity: tuple[int, int]
    access: int  # os.O_RDONLY, os.O_WRONLY or os.O_RDWR

    @classmethod
    def of(cls, fd: int) -> Handle:
        """A handle on `fd` of this process. Raises `ShippingError` for a socket."""
        status = os.fstat(fd)
        if stat.S_ISSOCK(status.st_mode):
            raise ShippingError(
                "a socket can't be opened by another process: pass Pipe(duplex=False), a queue, or "
                "the address, and connect in the dataset's constructor"
            )
        access = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
        return cls(os.getpid(), fd, (status.st_dev, status.st_ino), access)

    def open(self) -> int:
        """A descriptor of this process. Raises `FileNotFoundError` where it is gone there."""
        path = f"/proc/{self.pid}/fd/{self.fd}"
        try:
            mine = os.open(path, self.access | os.O_CLOEXEC)
            status = os.fstat(mine)
            if (status.st_dev, status.st_ino) == self.identity:
                return mine
            os.close(mine)  # the number means something else by now
            raise FileNotFoundError(errno.ENOENT, "it is closed", path)
        except OSError as error:
            raise FileNotFoundError(
                f"shared memory of process {self.pid} can't be opened: it was freed there, or the "
                "process is gone, or is another user's. Keep it alive there while others open it"
            ) from error

    detach = open  # as `multiprocessing` calls it


@dataclass(slots=True)
class Shipment:
    """One pickling of what goes to workers; for `multiprocessing` it is the process that is born.

    `elsewhere`: some of them are on other machines. `kept`: what must live as long as workers may
    start.
    """

    elsewhere: bool
    kept: list[object] = field(default_factory=list)
    storages: dict[int, torch.UntypedStorage] = field(default_factory=dict)  # by address

    def duplicate_for_child(self, fd: int) -> int:
        return fd

    def DupFd(self, fd: int) -> Handle:  # noqa: N802 - the name that multiprocessing asks for
        return Handle.of(fd)


_current: ContextVar[Shipment | None] = ContextVar("shipment", default=None)


@contextmanager
def shipping(shipment: Shipment) -> Iterator[None]:
    """What is pickled inside belongs to `shipment`."""
    token = _current.set(shipment)
    before: Any = context.get_spawning_popen()
    if _OPENS_OTHERS and not shipment.elsewhere:
        context.set_spawning_popen(shipment)  # type: ignore[arg-type]
    try:
        yield
    finally:
        context.set_spawning_popen(before)
        _current.reset(token)


def current() -> Shipment | None:
    """What is being pickled in this thread."""
    return _current.get()


def reduce(obj: Any, shipment: Shipment) -> Any:
    """How to pickle an object of `multiprocessing`; `NotImplemented` for all others.

    Raises `ShippingError` where it can't be shared with workers.
    """
    module = type(obj).__module__
    if isinstance(obj, torch.UntypedStorage) and obj.is_shared():
        return _reduce_storage(obj, shipment)
    if not module.startswith("multiprocessing.") and _OF_SHARED_CTYPES not in _own(obj):
        return NotImplemented
    name = f"{module}.{type(obj).__qualname__}"
    if shipment.elsewhere:
        raise ShippingError(f"a {name} belongs to one machine, and {_ELSEWHERE}")
    semaphore = getattr(obj, "_semlock", None)
    if semaphore is not None and semaphore.name is None:
        raise ShippingError(
            f"a {name} of the context 'fork' is for forked processes only. Make it with "
            "multiprocessing.get_context('spawn'), or give start_method='fork'"
        )
    shipment.kept.append(obj)
    if isinstance(obj, Arena):
        return open_arena, (obj.size, Handle.of(obj.fd))
    registered = ForkingPickler(io.BytesIO()).dispatch_table.get(type(obj))
    return NotImplemented if registered is None else registered(obj)


def _own(obj: Any) -> Any:
    """The attributes that are its own, and not by a ``__getattr__`` that answers to all names."""
    own = getattr(obj, "__dict__", None)
    return own if isinstance(own, dict) else ()


def reduce_shared_tensor(tensor: Tensor, shipment: Shipment) -> Any:
    """How to pickle a tensor in shared memory; None for any other."""
    if not tensor.is_cpu or tensor.layout is not torch.strided or tensor.is_nested:
        return None
    if not tensor.is_shared():  # type: ignore[no-untyped-call]
        return None
    storage = tensor.untyped_storage()
    storage = shipment.storages.setdefault(storage.data_ptr(), storage)
    if not storage.nbytes() or _reduce_storage(storage, shipment) is NotImplemented:
        return None
    view = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
    return open_tensor, (storage, tensor.dtype, *view, tensor.requires_grad)


def _reduce_storage(storage: torch.UntypedStorage, shipment: Shipment) -> Any:
    if shipment.elsewhere:
        raise ShippingError(
            f"it is in shared memory of this machine, and {_ELSEWHERE}. Pass a copy: .clone()"
        )
    if not _OPENS_OTHERS:
        return NotImplemented
    shipment.kept.append(storage)
    if storage.filename is not None:
        return open_file, (storage.filename, storage.nbytes())
    strategy = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
    if strategy == "file_system":
        return open_named, storage._share_filename_cpu_()
    fd, nbytes = storage._share_fd_cpu_()
    if fd < 0:  # a private map of a file
        return NotImplemented
    return rebuild_storage_fd, (torch.UntypedStorage, Handle.of(fd), nbytes)


def open_arena(nbytes: int, handle: Handle) -> Arena:
    """Where values and arrays of `multiprocessing` lie; closed with the last of them."""
    if handle.pid == os.getpid():
        return Arena(nbytes, handle.fd)
    fd = handle.open()
    arena = Arena(nbytes, fd)
    util.Finalize(arena, os.close, (fd,))
    return arena


def open_tensor(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
) -> Tensor:
    """A tensor over shared memory."""
    tensor = torch.empty(0, dtype=dtype, device="cpu").set_(storage, offset, shape, stride)
    return tensor.requires_grad_(requires_grad)


def open_file(filename: str, nbytes: int) -> Any:
    """The memory of `torch.from_file(shared=True)`."""
    return torch.UntypedStorage.from_file(filename, shared=True, nbytes=nbytes)


def open_named(manager: bytes, name: bytes, nbytes: int) -> torch.UntypedStorage:
    """Shared memory of torch's strategy "file_system"."""
    return torch.UntypedStorage._new_shared_filename_cpu(manager, name, nbytes)


def tracker() -> Handle | None:
    """The resource tracker of this process, if it runs."""
    fd = getattr(resource_tracker._resource_tracker, "_fd", None)
    return None if fd is None or not _OPENS_OTHERS else Handle.of(fd)


def follow_tracker(handle: Handle | None) -> None:
    """Use the tracker of the process that ships, as `multiprocessing` has it.

    One of a worker's own would remove the training process's shared memory when the worker ends.
    """
    own: Any = resource_tracker._resource_tracker
    if handle is not None and handle.pid != os.getpid() and getattr(own, "_fd", None) is None:
        with contextlib.suppress(FileNotFoundError):  # then there is nothing to remove either
            own._fd = handle.open()
