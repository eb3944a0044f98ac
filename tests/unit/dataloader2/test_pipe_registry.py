"""Functional names beside other packages that want the same ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import IterDataPipe

from swift_loader.dataloader2 import functional_datapipe
from swift_loader.dataloader2.iter import Header
from swift_loader.dataloader2.iter import IterableWrapper as Wrap
from swift_loader.dataloader2.registry import register_on, registered_by_us


class Theirs(IterDataPipe[str]):
    def __init__(self, source: IterDataPipe[Any]) -> None:
        self.source = source

    def __iter__(self) -> Iterator[str]:
        yield "theirs"


@pytest.fixture
def base() -> Any:
    """A pipe class with a table of names of its own, as torch's is before anybody registers."""

    return type("Base", (IterDataPipe,), {"functions": {}})


@pytest.mark.parametrize("ours_first", [True, False])
def test_a_name_of_ours_gives_way_in_either_order(base: Any, ours_first: bool) -> None:
    if ours_first:
        register_on(base, "header", Header)
        assert registered_by_us(base, "header")
    base.register_datapipe_as_function("header", Theirs)
    register_on(base, "header", Header)
    assert not registered_by_us(base, "header")
    assert list(base.functions["header"](Wrap([1, 2]))) == ["theirs"]


def test_two_others_still_clash(base: Any) -> None:
    base.register_datapipe_as_function("header", Theirs)
    with pytest.raises(Exception, match="already taken"):
        base.register_datapipe_as_function("header", Theirs)


def test_registering_again_after_a_reload_is_fine(base: Any) -> None:
    register_on(base, "header", Header)
    register_on(base, "header", Header)
    assert list(base.functions["header"](Wrap([1, 2]), 1)) == [1]


def test_a_users_pipe_gets_a_functional_name() -> None:
    functional_datapipe("theirs_for_test")(Theirs)
    try:
        assert list(Wrap([1, 2]).theirs_for_test()) == ["theirs"]
        assert registered_by_us(IterDataPipe, "theirs_for_test")
    finally:
        del IterDataPipe.functions["theirs_for_test"]


def test_torchs_own_names_stay_torchs() -> None:
    assert not registered_by_us(IterDataPipe, "map")
    assert registered_by_us(IterDataPipe, "parse_csv")
