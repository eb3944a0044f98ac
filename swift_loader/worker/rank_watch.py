"""Notes which of a process's ranks the user's code asks for, and answers as the training process.

A worker has the training process's environment, and no process group. All the same
`torch.distributed` tells the rank there, as it does in a worker that torch's DataLoader forks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, FunctionType
from typing import Any

import torch.distributed

__all__ = ["RANK_VARIABLES", "SIZE_VARIABLES", "RankWatch", "tell_group"]

#: What launchers set to say which rank a process is ...
RANK_VARIABLES = frozenset(
    (
        *("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "ROLE_RANK"),  # torchrun, Lightning
        *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK", "PMIX_RANK"),
        *("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK"),
    )
)
#: ... and of how many.
SIZE_VARIABLES = frozenset(
    (
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "NNODES"),
        *("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NNODES"),
        *("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_SIZE"),
        *("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"),
    )
)
_WATCHED = RANK_VARIABLES | SIZE_VARIABLES
_GET_RANK, _GET_WORLD_SIZE = "torch.distributed.get_rank()", "torch.distributed.get_world_size()"
# webdataset reads the ranks for these too, which don't split by them.
_INNOCENT = frozenset({"split_by_worker", "pytorch_worker_seed"})

_open: RankWatch | None = None  # the one that notes


class RankWatch:
    """Notes what is asked while it is open. A variable that is not set tells nobody anything."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    @property
    def rank_and_size(self) -> bool:
        """Whether both were asked for, as a splitting takes."""
        asked = set(self.asked)
        return bool(asked & (RANK_VARIABLES | {_GET_RANK})) and bool(
            asked & (SIZE_VARIABLES | {_GET_WORLD_SIZE})
        )

    @contextmanager
    def open(self) -> Iterator[None]:
        """While the user's code runs. One watch of a process is open at a time."""
        global _open
        _watch_environment()
        _watch_torch()
        _open = self
        try:
            yield
        finally:
            _open = None

    def note(self, what: str) -> None:
        if what not in self.asked and not _is_innocent(sys._getframe(2)):
            self.asked.append(what)


def tell_group(rank: int, world_size: int) -> None:
    """Let `torch.distributed` say in this process what it says in the training process."""
    for name, answer in {
        "is_initialized": True,
        "get_rank": rank,
        "get_world_size": world_size,
    }.items():
        _replace(name, _Answer(_answering(name), answer))
    if torch.distributed.group.WORLD is None:  # a forked process has the training process's
        setattr(torch.distributed.group, "WORLD", _group(rank, world_size))  # noqa: B010


class _Answer:
    """A function of `torch.distributed` that answers for the default group by itself."""

    def __init__(self, original: Callable[..., Any], answer: Any) -> None:
        self._original, self._answer = original, answer

    def __call__(self, group: Any = None) -> Any:
        if group is not None:
            return self._original(group)
        return self._answer


def _group(rank: int, world_size: int) -> torch.distributed.ProcessGroup:
    """What ``torch.distributed.group.WORLD`` is in a worker: it tells who it is, and no more."""

    class Group(torch.distributed.ProcessGroup):  # not every torch has one to inherit from
        def rank(self) -> int:
            return noted(_GET_RANK, super().rank())

        def size(self) -> int:
            return noted(_GET_WORLD_SIZE, super().size())

    def noted(what: str, answer: int) -> int:
        if _open is not None:
            _open.note(what)
        return answer

    return Group(rank, world_size)  # type: ignore[call-arg]  # the types know one of two ways


class _Noting:
    """A function of `torch.distributed` that notes that it was asked, and told something."""

    def __init__(self, original: Callable[..., Any], what: str) -> None:
        self._original, self._what = original, what

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        answer = self._original(*args, **kwargs)
        if _open is not None:
            _open.note(self._what)
        return answer


class _WatchedEnvironment(type(os.environ)):  # type: ignore[misc]
    """`os.environ`, which notes who reads the rank. A copy of all of it is no question."""

    _to_copy: Iterator[str] = iter(())  # keys that a copy reads after it has listed them

    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        if _open is not None:
            copied = next(self._to_copy, None) == key
            if not copied:
                type(self)._to_copy = iter(())
                if key in _WATCHED:
                    _open.note(key)
        return value

    def __iter__(self) -> Iterator[str]:
        keys = list(super().__iter__())
        type(self)._to_copy = iter(keys)
        return iter(keys)


def _watch_environment() -> None:
    if type(os.environ) is not _WatchedEnvironment:
        os.environ.__class__ = _WatchedEnvironment  # also for whoever imported it by name


def _watch_torch() -> None:
    for name, what in {"get_rank": _GET_RANK, "get_world_size": _GET_WORLD_SIZE}.items():
        original = _answering(name)
        if not isinstance(original, _Noting):
            _replace(name, _Noting(original, what))


def _is_initialized() -> Any:
    return _swift_loader_answers["is_initialized"]()  # type: ignore[name-defined]  # noqa: F821


def _get_rank(group: Any = None) -> Any:
    return _swift_loader_answers["get_rank"](group)  # type: ignore[name-defined]  # noqa: F821


def _get_world_size(group: Any = None) -> Any:
    return _swift_loader_answers["get_world_size"](group)  # type: ignore[name-defined]  # noqa: F821


# What the functions of torch run instead: of their own globals, which have the answers.
_INSTEAD = {
    "is_initialized": _is_initialized.__code__,
    "get_rank": _get_rank.__code__,
    "get_world_size": _get_world_size.__code__,
}


def _answering(name: str) -> Callable[..., Any]:
    """What a function of `torch.distributed` does now."""
    function = getattr(torch.distributed, name)
    code = getattr(function, "__code__", None)
    if code is None:
        return function  # type: ignore[no-any-return]
    if code is _INSTEAD[name]:
        return _answers(function)[name]
    return FunctionType(
        code, function.__globals__, name, function.__defaults__, function.__closure__
    )


def _replace(name: str, answer: Callable[..., Any]) -> None:
    """Let it answer so, also for whoever imported the function by name before."""
    function = getattr(torch.distributed, name)
    if type(function) is FunctionType and not function.__closure__:
        _answers(function)[name] = answer
        function.__code__ = _INSTEAD[name]
        return
    setattr(torch.distributed, name, answer)
    setattr(torch.distributed.distributed_c10d, name, answer)


def _answers(function: FunctionType) -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]]
    found = function.__globals__.setdefault("_swift_loader_answers", {})
    return found


def _is_innocent(frame: FrameType | None) -> bool:
    """Whether a module that is being imported asks, or webdataset for what is no split by rank."""
    while frame is not None:
        code = frame.f_code
        module = str(frame.f_globals.get("__name__"))
        if module.startswith("swift_loader."):
            return False  # the worker, which runs the user's code
        if code.co_filename.startswith("<frozen importlib"):
            return True
        if module.startswith("webdataset.") and code.co_name in _INNOCENT:
            return True
        frame = frame.f_back
    return False
