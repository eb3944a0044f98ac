"""Batches of all types through all that walks them: moving, cutting, measuring, and the codec."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from swift_loader.batch.arena import Arena, SlotTooSmall
from swift_loader.batch.codec import decode, encode
from swift_loader.batch.collate import collate
from swift_loader.batch.tree import approximate_bytes, map_leaves, walk
from swift_loader.errors import BatchError
from swift_loader.pipeline.staging import move
from swift_loader.sharing.cut import Cutter
from tests.unit.batch.batches import BATCHES, assert_equal, batch_of
from tests.unit.batch.test_collate import AS_TORCH

pytestmark = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors:UserWarning", "ignore:Sparse:UserWarning"
)
CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.mark.parametrize("name", BATCHES)
def test_moved_to_the_cpu_a_batch_is_the_same(name: str) -> None:
    batch = batch_of(name, 3)
    assert_equal(move(batch, CPU), batch, types=False)
    assert_equal(batch, batch_of(name, 3))  # it was not written to


@pytest.mark.parametrize("name", [name for name in BATCHES if name != "batch: nested"])
def test_moved_to_a_device_every_tensor_is_there(name: str) -> None:
    batch = batch_of(name, 3)
    moved = move(batch, META)
    assert type(moved) is type(batch) or isinstance(batch, np.ndarray)
    tensors = [leaf for leaf in walk(moved) if isinstance(leaf, torch.Tensor)]
    if name == "batch: PackedSequence":
        tensors = [moved.data]  # its sizes stay on the host
    before = [leaf for leaf in walk(batch) if isinstance(leaf, torch.Tensor)]
    assert all(tensor.device == META for tensor in tensors)
    assert len(tensors) >= len(before) or name == "batch: PackedSequence"
    assert_equal(batch, batch_of(name, 3))


@pytest.mark.parametrize("name", BATCHES)
def test_cut_and_joined_a_batch_is_the_same(name: str) -> None:
    one, two = ({"n": torch.arange(3), "it": batch_of(name, 3)} for _ in range(2))
    cutter = Cutter(2)
    cutter.put(one)
    cutter.put(two)
    pieces = [cutter.take()["it"] for _ in range(3)]
    assert_equal(one["it"], batch_of(name, 3))
    again = Cutter(3)
    for piece in pieces:
        again.put({"n": torch.arange(2), "it": piece})
    for whole in (one, two):
        assert_equal(again.take()["it"], whole["it"])


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_measures_what_it_holds(name: str) -> None:
    batch = batch_of(name, 3)
    nbytes = 0
    for leaf in walk(batch):
        dense = leaf.to_dense() if isinstance(leaf, torch.Tensor) and leaf.is_sparse else leaf
        if getattr(leaf, "layout", torch.strided) in (torch.strided, torch.jagged):
            nbytes += getattr(dense, "nbytes", 0)
    assert nbytes <= approximate_bytes(batch) <= nbytes + 30_000


@pytest.mark.parametrize("name", BATCHES)
def test_encoded_and_decoded_a_batch_is_the_same(name: str) -> None:
    batch = batch_of(name, 3)
    region = np.empty(0, np.uint8)
    try:
        skeleton = encode(batch, Arena(None))
    except SlotTooSmall as short:
        region = np.empty(short.needed_bytes, np.uint8)
        skeleton = encode(batch, Arena(region))
    assert_equal(decode(skeleton, region), batch)


@pytest.mark.parametrize("name", BATCHES)
def test_a_default_device_changes_nothing(name: str) -> None:
    expected = batch_of(name, 3)
    region = np.empty(1 << 20, np.uint8)
    skeleton = encode(expected, Arena(region))
    samples = [AS_TORCH[name](n) for n in range(3)] if name in AS_TORCH else [0]
    try:
        torch.set_default_device("meta")
        batch = decode(skeleton, region)
        collated = collate(samples)
    finally:
        torch.set_default_device(None)
    assert_equal(batch, expected)
    for leaf in (*walk(batch), *walk(collated)):
        assert not isinstance(leaf, torch.Tensor) or leaf.device == CPU


class Moves:
    """A graph, say: its parts speak of each other."""

    def __init__(self) -> None:
        self.x = torch.arange(3)
        self.parent = self

    def to(self, device: torch.device) -> Moves:
        moved = Moves()
        moved.x = self.x.to(device)
        return moved


def test_an_object_that_moves_itself_is_asked_to() -> None:
    moved = move([Moves(), "a"], META)
    assert moved[0].x.device == META
    assert sum(isinstance(leaf, torch.Tensor) for leaf in walk(moved)) == 1


def test_an_object_that_hides_its_samples_is_not_cut() -> None:
    cutter = Cutter(2)
    cutter.put({"n": torch.arange(3), "graph": Moves()})
    with pytest.raises(BatchError, match=r"test_tree\.Moves holds its samples.*leave out batch_s"):
        cutter.take()


def test_a_batch_that_holds_itself_is_refused() -> None:
    knot: dict[str, Any] = {"x": torch.ones(1)}
    knot["self"] = [knot]
    with pytest.raises(BatchError, match="holds itself"):
        move(knot, CPU)
    assert len(list(walk(knot))) == 1


def test_what_holds_no_tensor_is_kept_as_it_is() -> None:
    @dataclasses.dataclass
    class Refuses:
        name: str

        def __copy__(self) -> Refuses:
            raise AssertionError

    one = Refuses("a")
    assert map_leaves(lambda leaf: leaf, [one, None])[0] is one
