"""Global lists that came out in another order where the script is imported for workers."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from swift_loader.worker.global_orders import orders_here, warn_of_other_orders


def warned_of(here: dict[str, Any], there: dict[str, Any], monkeypatch: Any) -> str:
    """What is said of a script with the globals `here`, which has `there` in the workers."""
    scripts = []
    for names in here, there:
        script = ModuleType("__main__")
        script.__file__ = "/nowhere/script.py"
        vars(script).update(names)
        scripts.append(script)
    monkeypatch.setitem(sys.modules, "__main__", scripts[0])
    told = orders_here(list(here))
    monkeypatch.setitem(sys.modules, "__main__", scripts[1])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        warn_of_other_orders(told)
    return str(said[0].message).partition(":")[0] if said else ""


DIFFERS: dict[str, tuple[Any, Any]] = {
    "list": (["cat", "dog"], ["dog", "cat"]),
    "tuple": (("cat", "dog"), ("dog", "cat")),
    "labels": ({"cat": 0, "dog": 1}, {"dog": 0, "cat": 1}),
    "files": ([Path("a"), Path("b")], [Path("b"), Path("a")]),
    "pairs": ([("a", 0), ("b", 1)], [("b", 1), ("a", 0)]),
    "permutation": (np.array([0, 1, 2]), np.array([2, 1, 0])),
    "permutation of torch": (torch.tensor([0, 1, 2]), torch.tensor([2, 1, 0])),
}


@pytest.mark.parametrize("kind", DIFFERS)
def test_another_order_is_said(kind: str, monkeypatch: Any) -> None:
    one, other = DIFFERS[kind]
    same = {"same": one}
    assert warned_of({"x": one, **same}, {"x": other, **same}, monkeypatch) == "x"


ANYTHING_ELSE: dict[str, tuple[Any, Any]] = {
    "other texts": (["cat", "dog"], ["cat", "cow"]),
    "another type": (["cat", "dog"], {"cat", "dog"}),
    "keys of the same values": ({"cat": 0, "dog": 1}, {"dog": 1, "cat": 0}),
    "sets": ({"cat", "dog"}, {"dog", "cat"}),
    "no texts": ([object(), "a"], ["a", object()]),
    "one text": (["a"], ["a"]),
    "numbers": (torch.ones(3), torch.ones(3)),
    "a long number": ([10**5000, 1], [10**5000, 1]),
    "a device": (torch.arange(3, device="meta"), torch.arange(3)),
}


@pytest.mark.parametrize("kind", ANYTHING_ELSE)
def test_anything_else_is_not(kind: str, monkeypatch: Any) -> None:
    one, other = ANYTHING_ELSE[kind]
    assert not warned_of({"x": one}, {"x": other}, monkeypatch)


def test_modules_beside_the_script_are_looked_at(tmp_path: Path, monkeypatch: Any) -> None:
    beside = ModuleType("beside")
    beside.__file__ = str(tmp_path / "beside.py")
    script = ModuleType("__main__")
    script.__file__ = str(tmp_path / "script.py")
    monkeypatch.setitem(sys.modules, "__main__", script)
    monkeypatch.setitem(sys.modules, "beside", beside)
    monkeypatch.setitem(sys.modules, "no_module", object())
    vars(beside)["labels"] = ["a", "b"]
    told = orders_here([])
    vars(beside)["labels"] = ["b", "a"]
    with pytest.warns(RuntimeWarning, match="beside.labels: in another order"):
        warn_of_other_orders(told)
