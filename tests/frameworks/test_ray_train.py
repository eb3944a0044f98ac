"""Ray Train: each of two training workers is a consumer, with workers of its own or of Ray's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from swift_loader import SwiftLoader
from swift_loader.remote import RayWorkers
from tests.datasets import Numbers

ray = pytest.importorskip("ray")
ray_train = pytest.importorskip("ray.train", exc_type=ImportError)
ray_torch = pytest.importorskip("ray.train.torch", exc_type=ImportError)
pytestmark = [pytest.mark.soak, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
NB_SAMPLES, NB_EPOCHS = 101, 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(
        num_cpus=6,
        object_store_memory=200 << 20,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
        include_dashboard=False,
        log_to_driver=False,
        # else Ray kills workers when other programs of the machine take its memory
        _system_config={"memory_monitor_refresh_ms": 0},
    )
    yield
    ray.shutdown()


def train(config: dict[str, Any]) -> None:
    """Runs in each training worker."""
    context = ray_train.get_context()
    rank = context.get_world_rank()
    model = ray_torch.prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    where = (
        {"worker_per_consumer": 0, "remote_workers": RayWorkers(1)}
        if config["placed_by_ray"]
        else {"worker_per_consumer": 1}
    )
    loader = SwiftLoader(
        Numbers, {"n": NB_SAMPLES}, 8, nb_consumer=context.get_world_size(), shuffle=True, **where
    )
    seen: list[list[int]] = []
    with loader:
        loader.start(rank, ray_torch.get_device())
        for _ in range(NB_EPOCHS):
            seen.append([])
            for rows, indices in loader:
                optimizer.zero_grad()
                model(rows / 100).square().mean().backward()
                optimizer.step()
                total = torch.tensor(len(indices))
                dist.all_reduce(total)  # hangs where a rank makes a step more than another
                seen[-1] += indices.tolist()
    (Path(config["folder"]) / f"{rank}.json").write_text(json.dumps(seen))


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("placed_by_ray", [False, True])
def test_training_workers_are_consumers_that_take_equal_steps(
    tmp_path: Path, placed_by_ray: bool
) -> None:
    trainer = ray_torch.TorchTrainer(
        train,
        train_loop_config={"folder": str(tmp_path), "placed_by_ray": placed_by_ray},
        torch_config=ray_torch.TorchConfig(backend="gloo"),
        scaling_config=ray_train.ScalingConfig(num_workers=2),
        run_config=ray_train.RunConfig(storage_path=str(tmp_path / "runs")),
    )
    trainer.fit()
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert len(first) == NB_EPOCHS
    for one, other in zip(first, second, strict=True):
        assert sorted(one + other) == list(range(NB_SAMPLES))
        assert abs(len(one) - len(other)) == 1
    assert first[0] != first[1]
