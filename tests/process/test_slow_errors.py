"""An error whose parts take for ever to send arrives, and its worker goes on."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from torch.utils.data import DataLoader, Subset

from swift_loader import SwiftLoader

pytestmark = pytest.mark.usefixtures("nothing_left")


class ForEver:
    def __reduce__(self) -> Any:
        threading.Event().wait()
        raise AssertionError


class HoldsForEver(Exception):
    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = 7
        self.held = ForEver()


class SpeaksForEver(Exception):
    def __str__(self) -> str:
        threading.Event().wait()
        raise AssertionError


class Fails:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> int:
        if i == 0:
            raise HoldsForEver("held")
        if i == 1:
            raise SpeaksForEver("spoken")
        return i


@pytest.mark.timeout(120)
def test_errors_that_can_never_be_sent_whole_arrive_and_the_worker_goes_on() -> None:
    options: dict[str, Any] = {"batch_size": None, "num_workers": 1}
    # torch would wait for the other text for ever
    torch_loader = DataLoader(Subset(Fails(), [0]), multiprocessing_context="fork", **options)  # type: ignore[arg-type]
    with pytest.raises(HoldsForEver, match="held"):
        list(torch_loader)
    with SwiftLoader(Fails(), validate=False, shuffle=False, **options) as loader:
        batches = iter(loader)
        with pytest.raises(HoldsForEver) as ours:
            next(batches)
        assert str(ours.value) == "held"
        assert (ours.value.code, ours.value.held) == (7, None)
        with pytest.raises(SpeaksForEver) as silent:
            next(batches)
        assert "(its text takes too long to wait for)" in str(silent.value.__cause__)
        assert [int(batch) for batch in batches] == [2]
        assert loader.stats().restarts == 0
