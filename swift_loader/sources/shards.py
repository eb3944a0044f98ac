"""`Shards`: a stream made of parts that can be read by themselves."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from swift_loader.errors import ConfigError, StateError, refuse

__all__ = ["ShardList", "Shards", "shard_list_of", "shorter"]

_NOTHING = object()  # stands for the end


@dataclass(frozen=True)
class ShardList:
    """What the order must know of `Shards`: how many, which (by a digest), and the buffer."""

    count: int
    digest: str
    buffer: int


class Shards(IterableDataset[Any]):
    """A stream of the items of all `shards`. Each item comes once over all consumers and workers.

    The loader deals the shards out to all workers of all consumers, in turn. A saved state says how
    far each shard was read, and what was in the buffers. So a run resumes with any number of
    consumers and workers. With the loader's ``shuffle=True``, the shards come in another order in
    each epoch.

    With torch's `DataLoader`, the shards go to the workers in turn, in the order of the list.

    Parameters
    ----------
    shards:
        The values that `open` takes: addresses of files, numbers, tuples. A single string may have
        braces that stand for many, as in ``"s3://data/{000..099}.tar"`` (webdataset's notation;
        needs ``braceexpand``). The list must be the same in all consumers, and after a resume.
    open:
        ``open(shard)`` gives the items of a shard, always in the same order. If it has an argument
        `start`, ``open(shard, start=n)`` begins with item ``n``, and a resumed run seeks. If it has
        none, the loader reads the earlier items and drops them; the log says how long that took.
    buffer:
        How many items each worker mixes with ``shuffle=True``: one of them leaves at random, and
        the next item that the worker reads takes its place. 0: the items of a shard keep their
        order.

    Raises
    ------
    ConfigError
        An argument can't work.
    """

    def __init__(
        self,
        shards: str | Iterable[Any],
        open: Callable[..., Iterable[Any]],
        *,
        buffer: int = 0,
    ) -> None:
        if isinstance(shards, str):
            shards = _expanded(shards)
        if not isinstance(shards, Iterable):
            refuse("shards", shards, "give a list of what `open` takes, or a text with braces")
        self.shards: Sequence[Any] = shards if isinstance(shards, range) else list(shards)
        if not callable(open):
            refuse("open", open, "give a function that opens a shard and gives its items")
        if isinstance(buffer, bool) or not isinstance(buffer, int) or buffer < 0:
            refuse("buffer", buffer, "give a number of items, or 0")
        self.buffer = buffer
        self._open = open
        self.seeks = _takes_start(open)

    def items(
        self, shard: int, start: int = 0, log: Callable[[str], object] | None = None
    ) -> Iterator[Any]:
        """The items of a shard from number `start` on. `log` hears how long skipping took.

        Raises `StateError` where the shard is read through, and ends before that item.
        """
        which = self.shards[shard]
        given = self._open(which, start=start) if self.seeks else self._open(which)
        if given is None:
            raise TypeError(
                f"`open` gave None for the shard {which!r:.200}: have it yield the shard's items, "
                "or return them"
            )
        items = iter(given)
        if start and not self.seeks:
            began_s = time.perf_counter()
            if next(itertools.islice(items, start - 1, None), _NOTHING) is _NOTHING:
                raise shorter(which, start)
            if log is not None:
                log(
                    f"shard {which!r:.200} was read through to item {start} in "
                    f"{time.perf_counter() - began_s:.3f} s: its reader can't seek (give `open` an "
                    "argument `start` if it can)"
                )
        return items

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        index, count = (0, 1) if info is None else (info.id, info.num_workers)
        for shard in range(index, len(self.shards), count):
            yield from self.items(shard)

    def __repr__(self) -> str:
        return (
            f"<Shards: {len(self.shards)} by {getattr(self._open, '__name__', self._open)!s:.60}>"
        )

    def listed(self) -> ShardList:
        """What the order must know."""
        found = hashlib.blake2b(digest_size=8)
        for shard in self.shards:
            found.update(repr(shard).encode() + b"\0")
        return ShardList(len(self.shards), found.hexdigest(), self.buffer)


def shorter(shard: Any, item: int) -> StateError:
    """The error, to be raised, where a saved state tells of items that a shard does not have."""
    return StateError(
        f"the shard {shard!r:.200} ends before item {item}, though items up to there were read "
        "from it before the state was saved: it is shorter than it was. Give the shards as they "
        "were, or start afresh without the state"
    )


def shard_list_of(factory: Any, arguments: dict[str, Any]) -> ShardList | None:
    """The shards of what a loader was given: `Shards`, or a class of them with its arguments."""
    if issubclass(type(factory), type) and issubclass(factory, Shards):
        made: Shards = factory(**arguments)
        return made.listed()
    built = arguments.get("dataset")
    if isinstance(built, Shards) and len(arguments) == 1:
        return built.listed()
    return None


def _takes_start(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a function of C
        return False
    found = parameters.get("start")
    return found is not None and found.kind is not inspect.Parameter.POSITIONAL_ONLY


def _expanded(pattern: str) -> list[str]:
    if "{" not in pattern:
        return [pattern]
    try:
        from braceexpand import braceexpand
    except ImportError as error:
        raise ConfigError(
            f"shards={pattern!r}: braces need the package braceexpand: "
            "pip install 'swift-loader[readers]', or give a list"
        ) from error
    return list(braceexpand(pattern))
