"""`SharedList`: like a plain list to read, and one piece of memory for all processes."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dill
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_loader import SharedList
from swift_loader.batch.handles import Shipment, shipping

ROOT = Path(__file__).parents[3]
HANDLE_BYTES = 200

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
bounds = st.none() | st.integers(-12, 12)


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@settings(max_examples=60)
@given(st.lists(plain, max_size=10), st.lists(st.tuples(bounds, bounds, bounds), max_size=3))
def test_reads_like_a_plain_list(items: list[Any], cuts: list[tuple[Any, Any, Any]]) -> None:
    shared = SharedList(iter(items))
    slices = [slice(*cut) for cut in cuts if cut[2] != 0]
    for cut in [slice(None), *slices]:
        shared, items = shared[cut], items[cut]
        assert len(shared) == len(items)
        assert list(shared) == items
        assert [shared[i] for i in range(-len(items), len(items))] == items + items
        assert list(reversed(shared)) == items[::-1]
        assert list(pickle.loads(pickle.dumps(shared))) == items
        with shipping(Shipment(elsewhere=True)):
            data = pickle.dumps(shared)
        assert list(pickle.loads(data)) == items


@pytest.mark.parametrize("index", [3, -4, 10**12])
def test_index_out_of_range_is_named(index: int) -> None:
    with pytest.raises(IndexError, match=f"{index} of a SharedList of 3"):
        SharedList("abc")[index]


def test_is_read_only_and_its_items_are_copies() -> None:
    rows = SharedList([{"x": 1}])
    with pytest.raises(TypeError):
        rows[0] = {"x": 2}  # type: ignore[index]
    with pytest.raises(AttributeError):
        rows.more = 1  # type: ignore[attr-defined]
    rows[0]["x"] = 2
    assert rows[0] == {"x": 1}


@pytest.mark.parametrize("dump", [pickle.dumps, dill.dumps])
@pytest.mark.parametrize("start", [0, 500_000])
def test_travels_as_a_small_handle(dump: Any, start: int) -> None:
    rows = SharedList(range(1_000_000))[start:]
    assert rows.nbytes > 8_000_000
    data = dump(rows)
    assert len(data) < HANDLE_BYTES
    again = pickle.loads(data)
    assert again[7] == start + 7
    assert again.nbytes == rows.nbytes


READ = """
import pickle, sys
rows = pickle.loads(sys.stdin.buffer.read())
print(len(rows), rows[0], rows[-1])
"""


def read_elsewhere(data: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", READ],
        input=data,
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    )


def test_opens_in_another_process() -> None:
    rows = SharedList({"i": i} for i in range(1000))
    result = read_elsewhere(pickle.dumps(rows[10:20]))
    assert result.stdout == b"10 {'i': 10} {'i': 19}\n", result.stderr


def test_handle_of_a_freed_list_is_refused() -> None:
    data = pickle.dumps(SharedList("abc"))
    result = read_elsewhere(data)
    assert b"shared memory of process" in result.stderr
    assert b"Keep it alive" in result.stderr


def test_handle_is_not_mistaken_for_what_has_its_number_now() -> None:
    first = SharedList("abc")
    data = pickle.dumps(first)
    del first
    second = SharedList("defg")  # gets the descriptor that the first one had
    assert pickle.dumps(second) != data
    with pytest.raises(FileNotFoundError, match="Keep it alive"):
        pickle.loads(data)


def test_slice_and_open_handle_keep_the_memory_and_the_last_one_frees_it() -> None:
    before = descriptors()
    rows = SharedList("abc")
    part, other = rows[1:], pickle.loads(pickle.dumps(rows))
    del rows
    assert list(part) == ["b", "c"]
    assert list(other) == ["a", "b", "c"]
    del part, other
    assert descriptors() == before


def test_iterable_that_raises_leaves_nothing() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise ValueError("row 1")

    before = descriptors()
    with pytest.raises(ValueError, match="row 1"):
        SharedList(broken())
    with pytest.raises(Exception, match="local object"):
        SharedList([lambda: 0])
    assert descriptors() == before


def test_what_shipping_gave_keeps_a_handle_good() -> None:
    shipment = Shipment(elsewhere=False)
    with shipping(shipment):
        data = pickle.dumps(SharedList("abc"))
    assert list(pickle.loads(data)) == ["a", "b", "c"]
    shipment.kept.clear()
    with pytest.raises(FileNotFoundError):
        pickle.loads(data)


def test_list_that_came_by_value_travels_on() -> None:
    with shipping(Shipment(elsewhere=True)):
        data = pickle.dumps(SharedList("abc"))
    again = pickle.loads(data)
    assert list(pickle.loads(pickle.dumps(again))) == ["a", "b", "c"]
    assert list(pickle.loads(pickle.dumps(again[::-1]))) == ["c", "b", "a"]
