"""States as plain data: whatever comes back is what went in, and loading runs no code."""

from __future__ import annotations

import copy
import json
import math
import pickle
import random
from collections import OrderedDict, deque
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_loader import StateError
from swift_loader.batch.plain import from_plain, to_plain

_KEYS = st.text(max_size=4) | st.integers() | st.booleans() | st.tuples(st.integers(), st.text())
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.builds(bytearray, st.binary(max_size=8))
    | st.frozensets(st.integers(), max_size=3)
    | st.sets(st.text(max_size=3), max_size=3)
)
VALUES = st.recursive(
    _LEAVES,
    lambda below: (
        st.lists(below, max_size=4)
        | st.lists(below, max_size=4).map(tuple)
        | st.builds(lambda items: deque(items, 5), st.lists(below, max_size=4))
        | st.dictionaries(_KEYS, below, max_size=4)
        | st.dictionaries(_KEYS, below, max_size=4).map(OrderedDict)
    ),
    max_leaves=12,
)


def through_json(value: Any) -> Any:
    return from_plain(json.loads(json.dumps(to_plain(value, "state"), sort_keys=True)), "state")


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, dict):
        pairs = zip(a.items(), b.items(), strict=True)
        ordered = type(a) is OrderedDict
        return (
            all(same(k, m) and same(v, w) for (k, v), (m, w) in pairs)
            if ordered
            else a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
        )
    if isinstance(a, (list, tuple, deque)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@given(VALUES)
@settings(max_examples=150)
def test_every_plain_value_comes_back_the_same(value: Any) -> None:
    assert same(through_json(value), value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.array(7),
        np.zeros((0, 4), np.int16),
        np.array(["a", "bc"]),
        np.array(["2020-01-01"], "M8[D]"),
        np.arange(3, dtype=">i4"),
        np.float64(0.5),
        np.bool_(True),
    ],
    ids=str,
)
def test_arrays_come_back_with_type_and_shape(array: Any) -> None:
    found = through_json({"a": array})["a"]
    assert type(found) is type(array)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert np.array_equal(found, array)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).reshape(2, 3).t(),
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.zeros(0, 3, dtype=torch.bool),
        torch.tensor([1j, 2]).conj(),
        torch.get_rng_state(),
    ],
    ids=["permuted", "bfloat16", "empty", "conjugated", "generator"],
)
def test_tensors_come_back_with_type_and_shape(tensor: torch.Tensor) -> None:
    found = through_json([tensor])[0]
    assert found.dtype == tensor.dtype
    assert torch.equal(found, tensor)
    found.zero_()  # it has memory of its own, and can be written to


def test_states_of_generators_travel() -> None:
    numbers = np.random.default_rng(3)
    state = {"python": random.getstate(), "numpy": numbers.bit_generator.state}
    numbers.bit_generator.state = through_json(state)["numpy"]
    random.setstate(through_json(state)["python"])
    assert numbers.random() == np.random.default_rng(3).random()


class Own:
    pass


_DEEP: list[Any] = []
_DEEP.append(_DEEP)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"a": [1, Own()]}, r"state\['a'\]\[1\] is a .*Own"),
        ({"f": len}, r"state\['f'\] is a builtins\.builtin_function"),
        ({"o": np.array([None])}, r"state\['o'\] is a numpy\.ndarray of object"),
        ({"t": torch.zeros(2).to_sparse()}, r"state\['t'\] is a tensor .*sparse"),
        ({(Own,): 1}, r"a key of state\[0\] is a builtins\.type"),
        (_DEEP, "holds itself"),
    ],
)
def test_what_is_no_plain_data_is_named_with_its_place(value: Any, named: str) -> None:
    with pytest.raises(StateError, match=named):
        to_plain(value, "state")


def test_a_pickle_in_a_state_stays_bytes() -> None:
    bomb = pickle.dumps(Own)
    assert through_json(bomb) == bomb


def test_mutated_states_are_refused_by_name_or_are_plain_data() -> None:
    rng = random.Random(0)
    state = {
        "numbers": np.arange(4),
        "t": torch.arange(3),
        "f": math.inf,
        "q": deque([1], 2),
        "d": {1: (2, {3})},
        "b": b"abc",
    }
    plain = to_plain(state, "state")
    values = [None, -1, 2**70, 0.5, math.nan, "", "x", "<i8", [], [[]], {}, {"$tuple": 3}, b"", Own]
    refused = 0
    for _ in range(2000):
        changed = copy.deepcopy(plain)
        at = changed
        while True:
            key = rng.choice(list(at) if isinstance(at, dict) else range(len(at)))
            if not (isinstance(at[key], (dict, list)) and at[key] and rng.random() < 0.8):
                break
            at = at[key]
        change = rng.randrange(3)
        if change == 0:
            at[key] = rng.choice(values)
        elif change == 1:
            del at[key]
        elif isinstance(at, dict):
            at[rng.choice(["$set", "$array", "$what", "dtype", "zz"])] = rng.choice(values)
        try:
            from_plain(changed, "state")
        except StateError as error:
            assert "state" in str(error)  # noqa: PT017 - where there is an error, it names the field
            refused += 1
    assert refused > 500
