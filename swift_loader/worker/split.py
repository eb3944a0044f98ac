"""Who splits a stream that several training processes ("ranks") read.

Exactly one party may split by rank. `stream_split` says which:

- ``"workers"``: the stream. Worker info counts the workers of this rank, as in torch.
- ``"ranks"``: the loader. Worker info counts the workers of all ranks, so a stream that splits by
  worker info splits by rank too.
- ``"auto"``: the stream, where it does that; otherwise the loader. A stream splits by rank where

  1. it is of a kind that does: made by Hugging Face's ``split_dataset_by_node``, with a node
     splitter of webdataset, Mosaic's or LitData's ``StreamingDataset``;
  2. it reads the rank from the environment, or asks `torch.distributed`, before its first item;
  3. it may have read it earlier: attributes, arguments or global names are called ``rank`` or
     ``world_size``. That is doubtful; so is a single question of the second kind, and a stream that
     takes the number of its worker or of all workers from worker info, but not both. In doubt the
     stream splits: seeing a sample twice is better than losing one.

A worker decides at the first item of its first epoch. A stream whose worker info was asked for
before there was a sign, and that asks for its rank after that, is built again.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import CodeType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

from swift_loader.errors import StateError, refuse
from swift_loader.worker.place import Place
from swift_loader.worker.rank_watch import RankWatch

__all__ = ["Split", "kind_that_splits", "names_of_ranks"]

_MOST_OBJECTS = 1000  # to be looked at
_WHOLE_PLACE = {"id", "num_workers"}
_KNOWN = frozenset(("torch", "datasets", "webdataset", *sys.stdlib_module_names)) - {"__main__"}
_STREAMING = ("streaming", "litdata")
_NAMES = re.compile(
    r"_*((global|node|local|dist|dp|process|data_parallel)_)?"
    r"(rank|world_size|num_ranks|nb_ranks|n_ranks|num_replicas|process_index|process_count"
    r"|num_processes)",
    re.IGNORECASE,
)


class Split:
    """What a worker has decided, and the place that its worker info tells."""

    def __init__(self, place: Place, index: int) -> None:
        option = place.stream_split
        self._index, self._workers = index, place.worker_per_consumer
        self._consumer, self._consumers = place.consumer_index, place.nb_consumer
        self._group = place.group is not None
        self._watch = RankWatch()
        #: whether what the stream asks for counts
        self.watches = option == "auto" and place.nb_consumer > 1
        #: what was asked of worker info: whoever asks for a place, splits by it
        self.asked: set[str] = set()
        self._asked_at_birth: set[str] = set()  # counts in every epoch
        #: "workers" or "ranks", None while there is no sign
        self.by: str | None = None if option == "auto" else option
        self.why = f"stream_split={option!r}"
        self.in_doubt = False
        self._settled = False
        if option == "auto" and place.nb_consumer == 1:
            self.by, self.why = "workers", "there is one rank"

    @property
    def place(self) -> tuple[int, int]:
        """``(id, number of workers)``, of this rank's or of all."""
        if self.by == "workers":
            return self._index, self._workers
        return self._consumer * self._workers + self._index, self._consumers * self._workers

    def watching(self) -> AbstractContextManager[None]:
        """While code of the user's runs that sets the stream up, or iterates it."""
        return self._watch.open() if self.watches else nullcontext()

    def ask(self, name: str, at_birth: bool = False) -> tuple[int, int]:
        """The place, for the attribute `name` of worker info."""
        self._look_at_watch()
        self.asked.add(name)
        if at_birth:
            self._asked_at_birth.add(name)
        return self.place

    def begin_epoch(self) -> None:
        """The stream is begun: it asks again, or was told at its birth."""
        self.asked = set(self._asked_at_birth)

    def ask_for_pipes(self) -> tuple[int, int]:
        """The place for the graph of data pipes, which torch splits over the ranks of a group."""
        self.asked |= _WHOLE_PLACE
        if self._group and self.by == "workers":
            return self._consumer * self._workers + self._index, self._consumers * self._workers
        return self.place

    def look_at(self, dataset: Any, kwargs: Mapping[str, Any]) -> None:
        """Decide by the kind of the stream that was built with `kwargs`."""
        if self.by is not None:
            return
        kind = kind_that_splits(dataset)
        if kind:
            self._decide("workers", kind)
            return
        self._look_at_watch()
        names = names_of_ranks(dataset, kwargs)
        if self.by is None and names:
            self._decide("workers", f"it knows {', '.join(sorted(names)[:4])}", in_doubt=True)

    def settle(self) -> bool:
        """Decide, at the first item. False: the stream was told another place, build it again.

        Raises `ConfigError` where it asks for its rank later: then data may be lost already.
        """
        if self._settled:
            self._look_again()
            return True
        self._settled = True
        before = self.place
        self._look_at_watch()
        if self.by is None and self.asked and not self.asked >= _WHOLE_PLACE:
            what = f"it takes {', '.join(sorted(self.asked))} alone from worker info"
            self._decide("workers", what, in_doubt=True)  # the rest is of its own knowledge
        if self.by is None:
            self._decide("ranks", "the stream does not split by rank")
        if self.by == "workers":
            self.watches = False
        if self.asked and self.place != before:
            self._asked_at_birth.clear()
            return False
        return True

    def resumed(self, by: str) -> None:
        """Go on as a saved state says. Raises `StateError` where an option says another thing."""
        if self.by is None:
            self._decide(by, "the loaded state says so")
        elif self.by != by and self._consumers > 1:
            raise StateError(
                f"stream_split was {by!r} when the state was saved, is now {self.by!r}: {self.why}"
            )

    def story(self) -> str:
        """The decision in a line."""
        who = {
            "workers": "the stream splits by rank, worker info is of this rank",
            "ranks": "the loader splits by rank, worker info is of all ranks",
        }
        return f"stream_split: {who[self.by or 'ranks']} ({self.why})"

    def _look_at_watch(self) -> None:
        asked = self._watch.asked
        if self.by is None and asked:
            what = f"it asks for {', '.join(asked[:4])}"
            self._decide("workers", what, in_doubt=not self._watch.rank_and_size)

    def _look_again(self) -> None:
        if self._watch.rank_and_size:
            refuse(
                "stream_split",
                "auto",
                f"the stream asks for {', '.join(self._watch.asked[:4])} after its first item, and "
                "may split a second time what is split by rank already. Give stream_split="
                "'workers' if it splits by rank, else 'ranks'",
            )

    def _decide(self, by: str, why: str, in_doubt: bool = False) -> None:
        self.by, self.why, self.in_doubt = by, why, in_doubt


def kind_that_splits(dataset: Any) -> str:
    """Why a stream, or one that is part of it, is known to split by rank; empty: it isn't known."""
    for part in _parts(dataset):
        for kind in type(part).__mro__:
            root = kind.__module__.partition(".")[0]
            if root in _STREAMING and kind.__name__.endswith("StreamingDataset"):
                return f"it is a {kind.__module__}.{kind.__name__}"
            if root == "datasets" and getattr(part, "_distributed", None) is not None:
                return "it was made by split_dataset_by_node"
        if isinstance(part, FunctionType) and part.__name__ == "split_by_node":
            return "it has the node splitter split_by_node"
    return ""


def names_of_ranks(dataset: Any, kwargs: Mapping[str, Any]) -> set[str]:
    """What attributes, arguments and code of a stream are called that looks like ranks."""
    names = set(kwargs)
    for part in _parts(dataset):
        if isinstance(part, GeneratorType):
            names |= {*part.gi_code.co_varnames, *_names_in(part.gi_code)}
        elif isinstance(part, FunctionType) and not _is_known(part.__module__):
            names |= _names_in(part.__code__)
        kinds = [kind for kind in type(part).__mro__ if not _is_known(kind.__module__)]
        if kinds:
            attributes = getattr(part, "__dict__", None)
            names |= set(attributes) if isinstance(attributes, dict) else set()
        for kind in kinds:
            for method in vars(kind).values():
                if isinstance(method, FunctionType):
                    names |= _names_in(method.__code__)
    return {name for name in names if isinstance(name, str) and _NAMES.fullmatch(name)}


def _is_known(module: str | None) -> bool:
    """Whether what is there speaks of ranks, or can't, and `kind_that_splits` tells."""
    return (module or "builtins").partition(".")[0] in _KNOWN


def _names_in(code: CodeType) -> set[str]:
    """Globals, attributes and variables of enclosing functions that code speaks of."""
    names = {*code.co_names, *code.co_freevars}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_in(constant)
    return names


def _parts(dataset: Any) -> Iterator[Any]:
    """The stream and what it is made of: attributes, members of lists, captured variables."""
    todo: list[Any] = [dataset]
    seen: set[int] = set()
    while todo and len(seen) < _MOST_OBJECTS:
        part = todo.pop()
        if id(part) in seen or isinstance(
            part, (str, bytes, int, float, type, ModuleType, type(None))
        ):
            continue
        seen.add(id(part))
        if isinstance(part, (list, tuple)):
            todo += part[:_MOST_OBJECTS]
            continue
        if isinstance(part, dict):
            todo += list(part.values())[:_MOST_OBJECTS]
            continue
        yield part
        if isinstance(part, functools.partial):
            todo += [part.func, part.args, part.keywords]
        elif isinstance(part, MethodType):
            todo += [part.__func__, part.__self__]
        elif isinstance(part, FunctionType):
            todo += [cell.cell_contents for cell in part.__closure__ or () if _is_filled(cell)]
        elif isinstance(part, GeneratorType):
            todo += list(part.gi_frame.f_locals.values()) if part.gi_frame else []
        attributes = getattr(part, "__dict__", None)
        if isinstance(attributes, dict):
            todo += list(attributes.values())[:_MOST_OBJECTS]


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
