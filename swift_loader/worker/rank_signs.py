"""What a stream is, and what its code speaks of, that tells whether it knows of ranks.

Looked at are the stream and what it is made of, its class and that one's bases, and the functions
that their code calls. Nothing of the user's is run.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import torch.distributed

from swift_loader.worker.rank_watch import RANK_VARIABLES, SIZE_VARIABLES

__all__ = [
    *("functions_of", "is_known", "kind_that_splits", "names_of_code", "names_of_ranks"),
    *("splits_by_all_ranks", "that_count", "waits_for_all_ranks"),
]

_VARIABLES = RANK_VARIABLES | SIZE_VARIABLES
_MOST_OBJECTS = 1000  # to be looked at
_MOST_FUNCTIONS = 200
_STREAMING = ("streaming", "litdata")
_SPLITTING = {"litdata", "datasets", "webdataset"}
_KNOWN = frozenset(
    ("torch", "datasets", "webdataset", "swift_loader", *sys.stdlib_module_names)
) - {"__main__"}
_NAMES = re.compile(
    r"_*(get_)?((global|node|local|dist|dp|data_parallel|process)_)?"
    r"(rank|world_size|num_ranks|nb_ranks|n_ranks|num_replicas|process_index|process_count"
    r"|num_processes)",
    re.IGNORECASE,
)


def kind_that_splits(dataset: Any) -> str:
    """Why a stream, or one that is part of it, is known to split by rank; empty: it isn't known."""
    for part in _parts(dataset):
        for kind in (part if isinstance(part, type) else type(part)).__mro__:
            root = kind.__module__.partition(".")[0]
            if root in _STREAMING and kind.__name__.endswith("StreamingDataset"):
                return f"it is a {kind.__module__}.{kind.__name__}"
            if root == "datasets" and getattr(part, "_distributed", None) is not None:
                return "it was made by split_dataset_by_node"
        if isinstance(part, FunctionType) and part.__name__ == "split_by_node":
            return "it has the node splitter split_by_node"
    return ""


def waits_for_all_ranks(dataset: Any) -> bool:
    """Whether a stream, in a worker, waits for the workers of all ranks of the host: Mosaic's."""
    root = _STREAMING[0]
    if root not in sys.modules:
        return False
    kinds = (part if isinstance(part, type) else type(part) for part in _parts(dataset))
    return any(
        one.__module__.partition(".")[0] == root and one.__name__ == "StreamingDataset"
        for kind in kinds
        for one in kind.__mro__
    )


def splits_by_all_ranks(dataset: Any, nb_consumer: int) -> str:
    """How a stream is known to split by all ranks of `torch.distributed`, and what to give instead.

    That is wrong where several ranks are one of the `nb_consumer` consumers. Empty: not known.
    """
    if _SPLITTING.isdisjoint(sys.modules):
        return ""
    for part in _parts(dataset):
        for kind in (part if isinstance(part, type) else type(part)).__mro__:
            root = kind.__module__.partition(".")[0]
            if root == "litdata" and kind.__name__ == "StreamingDataset":
                return (
                    "litdata's StreamingDataset splits by all ranks of torch.distributed: give "
                    "swift_loader.sources.readers.chunks.litdata(dataset)"
                )
            config = getattr(part, "_distributed", None) if root == "datasets" else None
            if config is not None and getattr(config, "world_size", nb_consumer) != nb_consumer:
                return (
                    f"split_dataset_by_node was given world_size={config.world_size}, and there "
                    f"are {nb_consumer} consumers: give it the place in the mesh and that size, or "
                    "leave it out"
                )
        if isinstance(part, FunctionType) and part.__name__ == "split_by_node":
            return (
                "its node splitter split_by_node counts all ranks of torch.distributed: give "
                "nodesplitter=None, and the loader splits"
            )
    return ""


def names_of_ranks(dataset: Any, kwargs: Mapping[str, Any], init: Any = None) -> set[str]:
    """What attributes, arguments, constants and code of a stream say that looks like ranks.

    `dataset` may be what builds it of `kwargs`. `init` is the `worker_init_fn`.
    """
    names = set(kwargs)
    for part in _parts([dataset, list(kwargs.values()), init]):
        if isinstance(part, GeneratorType):
            names |= _names_in(part.gi_code)
        if isinstance(part, functools.partial):
            names |= set(part.keywords)
        kind = part if isinstance(part, type) else type(part)
        if not all(is_known(one.__module__) for one in kind.__mro__):
            attributes = getattr(part, "__dict__", None)
            names |= set(attributes) if isinstance(attributes, dict) else set()
        for function in functions_of(part):
            names |= _names_in(function.__code__)
    return {name for name in names if isinstance(name, str) and _speaks_of_ranks(name)}


def that_count(names: Iterable[str]) -> list[str]:
    """Without those by which code asks for its rank, where nothing in this process tells it one."""
    tells = torch.distributed.is_available() and torch.distributed.is_initialized()
    if tells or not _VARIABLES.isdisjoint(os.environ):
        return sorted(names)
    return sorted(name for name in names if name not in _VARIABLES and not name.startswith("get_"))


def functions_of(part: Any) -> list[FunctionType]:
    """The user's functions that are `part`, or its methods, and those that they call."""
    found: dict[int, FunctionType] = {}
    todo: list[Any] = [part]
    if not isinstance(part, FunctionType):
        kind = part if isinstance(part, type) else type(part)
        todo = [
            _bare(method)
            for one in kind.__mro__
            if not is_known(one.__module__)
            for method in vars(one).values()
        ]
    while todo and len(found) < _MOST_FUNCTIONS:
        one = todo.pop()
        if not isinstance(one, FunctionType) or id(one) in found or is_known(one.__module__):
            continue
        found[id(one)] = one
        todo += [one.__globals__.get(name) for name in sorted(names_of_code(one.__code__))]
        if hasattr(one, "__wrapped__"):
            todo.append(one.__wrapped__)
    return list(found.values())


def is_known(module: str | None) -> bool:
    """Whether what is there speaks of ranks, or can't, and `kind_that_splits` tells."""
    return (module or "builtins").partition(".")[0] in _KNOWN


def names_of_code(code: CodeType) -> set[str]:
    """Globals and attributes that code speaks of, also that of functions in it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= names_of_code(constant)
    return names


def _bare(method: Any) -> Any:
    """The function of a method, of whatever kind."""
    if isinstance(method, property):
        return method.fget
    if isinstance(method, (staticmethod, classmethod)):
        return method.__func__
    return method


def _speaks_of_ranks(name: str) -> bool:
    return name in _VARIABLES or bool(_NAMES.fullmatch(name))


def _names_in(code: CodeType) -> set[str]:
    """Globals, attributes, variables and words that code speaks of."""
    names = {*code.co_names, *code.co_freevars, *code.co_varnames}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_in(constant)
        else:
            words = constant if isinstance(constant, (tuple, frozenset)) else (constant,)
            names |= {word for word in words if isinstance(word, str)}
    return names


def _parts(dataset: Any) -> Iterator[Any]:
    """The stream and what it is made of: attributes, members of lists, captured variables."""
    todo: list[Any] = [dataset]
    seen: set[int] = set()
    while todo and len(seen) < _MOST_OBJECTS:
        part = todo.pop()
        if id(part) in seen or isinstance(part, (str, bytes, int, float, ModuleType, type(None))):
            continue
        seen.add(id(part))
        if isinstance(part, (list, tuple)):
            todo += part[:_MOST_OBJECTS]
            continue
        if isinstance(part, dict):
            todo += list(part.values())[:_MOST_OBJECTS]
            continue
        yield part
        if isinstance(part, type):
            continue
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
