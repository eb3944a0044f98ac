"""A data set's fingerprint: the same for the same one in any process, another one for another."""

from __future__ import annotations

import functools
import os
import py_compile
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from swift_loader.cache.fingerprint import fingerprint

_CLASS = """
import functools
{top}

class Images{bases}:
    {attribute}

    def __init__(self, root, size=224, tags=frozenset({{"a", "b", "c"}})):
        self.root, self.size, self.tags = root, size, tags

    def __getitem__(self, index{more}):
        def decode(raw):
            return {body}
        return decode(index), {constant}
"""


def made(**parts: str) -> Any:
    """The class, with parts of its source changed."""
    defaults = {"top": "", "bases": "", "attribute": "side = 224", "more": ""}
    defaults |= {"body": "raw + 1", "constant": "2", **parts}
    names: dict[str, Any] = {"__name__": "made"}
    exec(_CLASS.format(**defaults), names)
    return names["Images"]


def test_it_is_the_same_for_equal_parts() -> None:
    assert fingerprint(made(), {"root": "x"}) == fingerprint(made(), {"root": "x"})


@pytest.mark.parametrize(
    "change",
    [
        {"body": "raw + 2"},
        {"body": "raw - 1"},
        {"constant": "3"},
        {"constant": "2.0"},
        {"constant": "'2'"},
        {"attribute": "side = 256"},
        {"attribute": "side = (224, 225)"},
        {"attribute": "other = 224"},
        {"attribute": "mean = property(lambda self: 2)"},
        {"attribute": "mean = staticmethod(lambda: 2)"},
        {"attribute": "mean = functools.cached_property(lambda self: 2)"},
        {"attribute": "mean = functools.lru_cache(lambda self: 2)"},
        {"attribute": "mean = functools.partialmethod(lambda self, n: n, 2)"},
        {"more": ", *, flip=True"},
        {"more": ", flip=True"},
        {"top": "class Base:\n    def read(self): return 2", "bases": "(Base)"},
    ],
    ids=str,
)
def test_another_code_of_the_class_is_another_data_set(change: dict[str, str]) -> None:
    assert fingerprint(made(**change)) != fingerprint(made())
    if "2" in str(change) and "224" not in str(change):
        changed = {name: value.replace("2", "5") for name, value in change.items()}
        assert fingerprint(made(**change)) != fingerprint(made(**changed))


def test_a_default_of_a_keyword_is_part_of_the_code() -> None:
    one, other = made(more=", *, flip=True"), made(more=", *, flip=False")
    assert fingerprint(one) != fingerprint(other)


class Arguments:
    """An object with a state."""

    def __init__(self, value: Any) -> None:
        self.value = value


_VALUES: list[Any] = [
    *(None, 0, 0.0, False, "", "0", b"0", (), [], {}, set(), frozenset({1})),
    *((1, 2), [1, 2], {1: 2}, {2: 1}, {1, 2}, ((1,), 2), [[1], 2], [1, [2]]),
    *(np.arange(4), np.arange(4.0), np.arange(4).reshape(2, 2), np.arange(4)[::-1]),
    *(np.array(["a", "b"]), np.array(["a", None], object), np.int64(1), np.float32(1)),
    *(torch.arange(4), torch.arange(4.0), torch.zeros(0), torch.arange(4).reshape(2, 2)),
    *(Path("a"), Path("b"), os, sys, len, print, Arguments(1), Arguments(2), Arguments),
    *(functools.partial(print, 1), functools.partial(print, 2), "ab".upper, "ab".lower),
    *(range(4), range(5), slice(1), np.dtype("i4"), torch.float32, torch.float16),
]


def test_different_arguments_have_different_fingerprints() -> None:
    found = [fingerprint({"root": value}) for value in _VALUES]
    twice = [(_VALUES[i], _VALUES[found.index(each)]) for i, each in enumerate(found)
             if found.index(each) != i]  # fmt: skip
    assert twice == []


def test_what_holds_itself_has_a_fingerprint() -> None:
    one: list[Any] = [1]
    one.append(one)
    other: list[Any] = [1]
    other.append(other)
    assert fingerprint(one) == fingerprint(other) != fingerprint([1, [1]])


def test_what_cannot_be_told_apart_is_refused() -> None:
    with pytest.raises(TypeError, match="lock"):
        fingerprint(Arguments(threading.Lock()))
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    with pytest.raises(TypeError, match="too deep"):
        fingerprint(deep)


def test_another_process_finds_the_same(tmp_path: Path) -> None:
    """From source and from compiled code, whatever the order of sets and the numbers of objects."""
    source = tmp_path / "images_of_cache.py"
    source.write_text(
        _CLASS.format(
            top="PAIR = (1, 2)", bases="", attribute="pair, same = (1, 2), (1, 2)", more="",
            body="raw in {1, 2, (1, 2)}", constant="(1, 2), (1, 2)",
        )
        + "ARGUMENTS = {'root': 'x', 'tags': {'a', 'b', 'c', 'd'}, 'pairs': [(1, 2), (1, 2)]}"
    )  # fmt: skip
    names: dict[str, Any] = {"__name__": source.stem}
    exec(compile(source.read_text(), source, "exec"), names)
    py_compile.compile(str(source), doraise=True)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    process = subprocess.run(
        [
            sys.executable,
            "-c",
            "import images_of_cache as it\n"
            "from swift_loader.cache.fingerprint import fingerprint\n"
            "print(it.__cached__, fingerprint(it.Images, it.ARGUMENTS))",
        ],
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert process.stdout.split()[1] == fingerprint(names["Images"], names["ARGUMENTS"])
