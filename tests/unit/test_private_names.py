"""Names that torch, CPython and others may take away without notice: each stands in a list here.

The list says, for each name, what stops working without it. A name that is used and not listed
fails, and so does one that is listed and no longer used.
"""

from __future__ import annotations

import ast
import importlib
from collections import defaultdict
from pathlib import Path

import pytest

import swift_loader

ROOT = Path(swift_loader.__file__).parent

#: Begin with an underscore, and are documented all the same.
DOCUMENTED = {
    "_asdict": "named tuples",
    "_current_frames": "sys",
    "_exit": "os",
    "_getframe": "sys",
    "_field_defaults": "named tuples",
    "_fields": "named tuples",
    "_make": "named tuples",
    "_replace": "named tuples",
    "_value_": "enum",
}

#: Where each is used, and what stops working without it.
PRIVATE = {
    "_accelerator_connector": {
        "integrations/lightning.py": "`Trainer(use_distributed_sampler=False)` is not heeded",
    },
    "_data_fetcher": {
        "integrations/lightning.py": "a resume of a stream loses the batch that was fetched ahead",
    },
    "torch.utils.data._utils": {
        "batch/collate.py": "types that the user registered with torch are collated as here only",
        "dataloader2/iter/prefetch.py": "`pin_memory()` of data pipes",
        "rpcdataloader/pinning.py": "pinning of batches",
        "worker/birth.py": "`get_worker_info()` in a worker is None: no stream is split by it",
        "worker/shard.py": "`get_worker_info()` in a worker is None: no stream is split by it",
    },
    "torch.utils.data.datapipes._hook_iterator": {
        "dataloader2/graph.py": "data pipes that read from processes",
    },
    "torch.utils.data.datapipes.datapipe._DataPipeSerializationWrapper": {
        "dataloader2/graph.py": "graphs of data pipes that DataLoader wrapped",
    },
    "torch.utils.data.datapipes.utils.common._check_unpickable_fn": {
        "dataloader2/iter/items.py": "these data pipes",
        "dataloader2/iter/mixing.py": "these data pipes",
        "dataloader2/iter/order.py": "these data pipes",
        "dataloader2/iter/waiting.py": "these data pipes",
        "dataloader2/map/converting.py": "these data pipes",
    },
    "_worker_info": {
        "worker/birth.py": "`get_worker_info()` in a worker is None: no stream is split by it",
        "worker/shard.py": "`get_worker_info()` in a worker is None: no stream is split by it",
    },
    "_get_dump": {
        "batch/classes.py": "what is registered with abstract classes that travel by value",
    },
    "_is_child_datapipe": {
        "dataloader2/graph.py": "data pipes with several outputs",
    },
    "_datapipe": {
        "loader/from_torch.py": "`from_dataloader` of a DataLoader over data pipes",
    },
    "_is_profiler_enabled": {"telemetry/ranges.py": "ranges of the loader in torch's profiles"},
    "_indices": {
        "batch/reduce.py": "sparse tensors that are not coalesced",
        "batch/tree.py": "sparse tensors that are not coalesced, on a GPU",
    },
    "_values": {
        "batch/reduce.py": "sparse tensors that are not coalesced",
        "batch/tree.py": "sparse tensors that are not coalesced, on a GPU",
    },
    "_slotnames": {"batch/reduce.py": "attributes in slots of a subclass of tensor"},
    "_distributed": {
        "sources/readers/hugging_face.py": "a stream that splits itself by rank is refused",
        "worker/rank_signs.py": "Hugging Face: a stream that splits itself by rank is known",
    },
    "_tensor_str": {"worker/settings.py": "torch's print options reach workers"},
    "_member_type_": {"batch/classes.py": "enumerations of `__main__` travel to workers"},
    "_mmap": {"batch/memmaps.py": "numpy: memory maps travel as the name of their file"},
    "_registry": {"worker/zygote.py": "weakref: a worker takes 50 ms more to end"},
    "_args_from_interpreter_flags": {"worker/boot.py": "workers get the flags of python -X, -W"},
    "_clear": {"worker/zygote.py": "a forked worker runs what the script registered with atexit"},
    "_run_exitfuncs": {"worker/birth.py": "what a data set registered with atexit runs"},
    "_posixshmem": {"transport/memory.py": "macOS: memory without a name"},
    "_fd": {"batch/handles.py": "shared memory of multiprocessing outlives the workers"},
    "_resource_tracker": {
        "batch/handles.py": "shared memory of multiprocessing outlives the workers",
    },
    "_semlock": {"batch/handles.py": "locks and queues of multiprocessing in a data set"},
    "_new_shared_filename_cpu": {"batch/handles.py": "tensors that are shared by a file's name"},
    "_share_filename_cpu_": {"batch/handles.py": "tensors that are shared by a file's name"},
    "_share_fd_cpu_": {"batch/handles.py": "tensors of `share_memory_()` in a data set are shared"},
    "_rand": {"order/generators.py": "resuming samplers that draw from numpy's global generator"},
    "_inst": {"order/generators.py": "resuming samplers that draw from `random`"},
}


def used(root: Path = ROOT) -> dict[str, set[str]]:
    """Underscore names that the product uses and does not define, with the files that use them."""
    trees = {
        str(path.relative_to(root)): ast.parse(path.read_text()) for path in root.rglob("*.py")
    }
    own: dict[str, set[str]] = defaultdict(set)
    for file, tree in trees.items():
        own[file.split("/")[0]] |= defined(tree)
    everywhere = set().union(*own.values())
    found = defaultdict(set)
    for file, tree in trees.items():
        for name, of_self in named(tree):
            known = everywhere if of_self else own[file.split("/")[0]]
            if name not in known and name not in DOCUMENTED:
                found[name].add(file)
    return dict(found)


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def defined(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("self", "cls")
        ):
            names.add(node.attr)
    return names


def named(tree: ast.AST) -> set[tuple[str, bool]]:
    """Attributes, imports, and what `getattr` and its like name; and whether it is of `self`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and private(node.attr):
            names.add((node.attr, isinstance(node.value, ast.Name) and node.value.id == "self"))
        elif isinstance(node, ast.Import):
            names |= {(up_to_private(alias.name), False) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith(
            ("swift_loader", "__future__")
        ):
            names |= {(up_to_private(f"{node.module}.{alias.name}"), False) for alias in node.names}
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "hasattr", "setattr", "delattr")
            and isinstance(node.args[1], ast.Constant)
            and private(str(node.args[1].value))
        ):
            names.add((str(node.args[1].value), False))
    return names - {("", False)}


def up_to_private(dotted: str) -> str:
    """``torch.utils.data._utils`` of a name below it; empty where no part is private."""
    parts = dotted.split(".")
    for i, part in enumerate(parts):
        if private(part):
            return ".".join(parts[: i + 1])
    return ""


def test_private_names_of_others_are_those_listed() -> None:
    assert {name: sorted(files) for name, files in sorted(used().items())} == {
        name: sorted(places) for name, places in sorted(PRIVATE.items())
    }


def test_a_new_private_name_is_found(tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text(
        "import torch, torch._C._jit\n"
        "from torch.utils.data._utils import worker\n"
        "class A:\n"
        "    _own = 1\n"
        "    def _f(self):\n"
        "        self._kept = torch._foo(self._own)\n"
        "        worker._set = getattr(self._kept, '_inner')._replace(a=self._inherited)\n"
    )
    assert set(used(tmp_path)) == {
        "torch._C",
        "torch.utils.data._utils",
        "_foo",
        "_set",
        "_inner",
        "_inherited",
    }


@pytest.mark.parametrize("name", [name for name in PRIVATE if name.startswith("torch.")])
def test_listed_names_of_torch_are_there(name: str) -> None:
    module, _, last = name.rpartition(".")
    if last.startswith("_") and not hasattr(importlib.import_module(module), last):
        importlib.import_module(name)
