"""The conformance suite over worker processes on this machine."""

from __future__ import annotations

from typing import Any

import pytest

from swift_loader import SwiftLoader
from tests.conformance import Conformance


@pytest.mark.usefixtures("nothing_left")
class TestLocalWorkers(Conformance):
    def loader(self, dataset: Any, kwargs: dict[str, Any], **options: Any) -> SwiftLoader:
        return SwiftLoader(dataset, kwargs, **options)
