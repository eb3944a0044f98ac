"""Mixtures by the workers of an endpoint: token for token what a plain loop gives."""

from __future__ import annotations

from typing import Any

import pytest

from swift_loader import Mixture, SwiftLoader
from tests.process.mixtures import a_few_resumes
from tests.process.remote.endpoints import RunningEndpoint

pytestmark = pytest.mark.usefixtures("nothing_left")


def resumes_over(
    endpoint: RunningEndpoint, seed: int, nb_stages: int = 2, packed: bool = False
) -> None:
    def make(mixture: Mixture, **options: Any) -> SwiftLoader:
        options["worker_per_consumer"] = 0
        return SwiftLoader(
            mixture, **options, remote_workers=[endpoint.address], remote_key=endpoint.key
        )

    a_few_resumes(make, (1, 3), seed, nb_stages, packed)


def test_stopped_anywhere_it_goes_on_with_other_numbers(endpoint: RunningEndpoint) -> None:
    resumes_over(endpoint, 1)
    resumes_over(endpoint, 2, packed=True)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("seed", range(200, 250))
def test_fifty_rounds_of_that(endpoint: RunningEndpoint, seed: int, packed: bool) -> None:
    resumes_over(endpoint, seed, 4, packed)
