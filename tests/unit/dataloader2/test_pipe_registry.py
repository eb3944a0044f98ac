"""Functional names beside other packages that want the same ones."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from torch.utils.data import IterDataPipe

from swift_loader.dataloader2 import functional_datapipe
from swift_loader.dataloader2.iter import IterableWrapper
from swift_loader.dataloader2.registry import registered_by_us

OTHER_PACKAGE = """
from torch.utils.data import IterDataPipe, functional_datapipe

@functional_datapipe("header")
class Other(IterDataPipe):
    def __init__(self, source):
        self.source = source
    def __iter__(self):
        yield "other"
"""
OURS = """
from swift_loader.dataloader2.iter import Header, IterableWrapper
"""
CHECK = """
assert list(IterableWrapper([1, 2]).header()) == ["other"]
assert list(Header(IterableWrapper([1, 2]), 1)) == [1]
assert list(IterableWrapper([1, 2]).cycle(2)) == [1, 2, 1, 2]
"""


@pytest.mark.parametrize("imports", [OTHER_PACKAGE + OURS, OURS + OTHER_PACKAGE])
def test_a_name_of_ours_gives_way_in_either_order_of_import(imports: str) -> None:
    code = textwrap.dedent(imports + CHECK)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_users_pipe_gets_a_functional_name() -> None:
    @functional_datapipe("doubled_for_test")
    class Doubled(IterDataPipe[int]):
        def __init__(self, source: IterDataPipe[int]) -> None:
            self.source = source

        def __iter__(self):  # type: ignore[no-untyped-def]
            for item in self.source:
                yield 2 * item

    try:
        assert list(IterableWrapper([1, 2]).doubled_for_test()) == [2, 4]
        assert registered_by_us(IterDataPipe, "doubled_for_test")
    finally:
        del IterDataPipe.functions["doubled_for_test"]


def test_torchs_own_names_stay_torchs() -> None:
    assert not registered_by_us(IterDataPipe, "map")
    assert registered_by_us(IterDataPipe, "parse_csv")
