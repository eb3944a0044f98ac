"""Workers of an endpoint have a cache of their own host's, and give the same batches."""

from __future__ import annotations

import pytest

from swift_loader import SwiftLoader
from tests import datasets
from tests.conformance import indices_of, plan_of
from tests.process.remote.endpoints import RunningEndpoint

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize("local", [0, 1])
def test_batches_of_an_endpoint_are_those_of_the_plan(
    local: int, endpoint: RunningEndpoint
) -> None:
    with SwiftLoader(
        datasets.Numbers,
        {"n": 60},
        batch_size=7,
        shuffle=True,
        worker_per_consumer=local,
        remote_workers=[endpoint.address],
        remote_key=endpoint.key,
        cache="1MB",
    ) as loader:
        loader.start(0)
        plan = plan_of(loader)
        for epoch in range(3):
            want = [plan.batch(epoch, 0, k).tolist() for k in range(plan.nb_batches(0))]
            assert [indices_of(batch) for batch in loader] == want
