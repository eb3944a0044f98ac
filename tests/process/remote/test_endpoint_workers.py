"""The conformance suite over an endpoint, alone and beside local workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swift_loader import SwiftLoader
from tests import datasets
from tests.conformance import Conformance
from tests.process.remote.endpoints import RunningEndpoint


@pytest.mark.usefixtures("nothing_left")
class TestEndpointAlone(Conformance):
    own_machine = settings_arrive = False  # they are the endpoint's

    @pytest.fixture(autouse=True)
    def _use(self, endpoint: RunningEndpoint) -> None:
        self.endpoint = endpoint

    def loader(self, dataset: Any, kwargs: dict[str, Any], **options: Any) -> SwiftLoader:
        return SwiftLoader(
            dataset,
            kwargs,
            **{
                **options,
                "worker_per_consumer": 0,
                "remote_workers": [self.endpoint.address],
                "remote_key": self.endpoint.key,
            },
        )


@pytest.mark.usefixtures("nothing_left")
class TestEndpointsBesideLocalWorkers(Conformance):
    own_machine = settings_arrive = False

    @pytest.fixture(autouse=True)
    def _use(self, endpoint: RunningEndpoint) -> None:
        self.endpoint = endpoint

    def loader(self, dataset: Any, kwargs: dict[str, Any], **options: Any) -> SwiftLoader:
        address, key = self.endpoint.address, self.endpoint.key
        return SwiftLoader(
            dataset, kwargs, **options, remote_workers=[address, address], remote_key=key
        )


def test_key_path_may_be_a_path_or_come_from_the_environment(
    endpoint: RunningEndpoint, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWIFT_LOADER_KEY", str(key_file))
    with (
        SwiftLoader(
            range, {}, worker_per_consumer=0, remote_workers=endpoint.address, validate=False
        ) as loader,
        pytest.raises(TypeError, match="range expected"),
    ):
        loader.start(0)


def test_a_data_set_that_is_changed_before_the_start_reaches_the_endpoint(
    endpoint: RunningEndpoint,
) -> None:
    dataset = datasets.Numbers(6)
    with SwiftLoader(
        dataset,
        batch_size=3,
        num_workers=0,
        remote_workers=endpoint.address,
        remote_key=endpoint.key,
    ) as loader:
        dataset.n, dataset.width = 9, 2
        assert len(loader) == 3
        assert [(list(rows.shape), len(numbers)) for rows, numbers in loader] == [([3, 2], 3)] * 3
