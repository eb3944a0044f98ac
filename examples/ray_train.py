"""Ray Train: two training workers, each of them a consumer with a loader worker of its own.

    pip install 'ray[train]'
    python examples/ray_train.py
    python examples/ray_train.py --short    # fewer epochs, a quick check

The loader's workers are child processes of the training workers, on the same machine. To have Ray
place them, on any node with CPUs to spare, write ``worker_per_consumer=0,
remote_workers=RayWorkers(num_workers=2)``, with `RayWorkers` from `swift_loader.remote`.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import ray
import ray.train.torch
import torch
import torch.distributed as dist
from digits import NB_TEST, Digits, make_model
from ray.train import RunConfig, ScalingConfig
from torch import nn

from swift_loader import SwiftLoader

WANTED_ACCURACY = 0.93


def make_loader(train: bool, device: torch.device) -> SwiftLoader:
    context = ray.train.get_context()
    loader = SwiftLoader(
        Digits,
        {"train": train},
        batch_size=32,
        nb_consumer=context.get_world_size(),
        worker_per_consumer=1,
        shuffle=train,
        nearby_shuffle=0,
    )
    loader.start(context.get_world_rank(), device)
    return loader


@torch.no_grad()
def measure_accuracy(model: nn.Module, loader: SwiftLoader, device: torch.device) -> float:
    seen = torch.zeros(2, device=device)  # correct, all
    for images, labels in loader:
        correct = (model(images).argmax(dim=1) == labels).sum()
        seen += torch.stack([correct, torch.tensor(len(labels), device=device)])
    dist.all_reduce(seen)
    correct_all, all_all = seen.tolist()
    assert all_all == NB_TEST  # each once: none twice, none left out
    return float(correct_all / all_all)


def train(config: dict[str, Any]) -> None:
    """Runs in each training worker; Ray has initialised `torch.distributed` there."""
    device = ray.train.torch.get_device()
    torch.manual_seed(1)
    model = ray.train.torch.prepare_model(make_model())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    accuracy = 0.0
    with make_loader(True, device) as train_loader, make_loader(False, device) as test_loader:
        for epoch in range(config["epochs"]):
            for images, labels in train_loader:
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            accuracy = measure_accuracy(model, test_loader, device)
            if dist.get_rank() == 0:
                print(f"epoch {epoch + 1}: {accuracy:.1%} right, {len(train_loader)} steps a rank")
            ray.train.report({"accuracy": accuracy})
    if accuracy < WANTED_ACCURACY:
        raise ValueError(f"test accuracy {accuracy:.1%}, wanted {WANTED_ACCURACY:.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--short", action="store_true", help="8 epochs instead of 16")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        trainer = ray.train.torch.TorchTrainer(
            train,
            train_loop_config={"epochs": 8 if args.short else 16},
            scaling_config=ScalingConfig(num_workers=2, use_gpu=torch.cuda.device_count() > 1),
            run_config=RunConfig(storage_path=folder),
        )
        trainer.fit()  # raises what a training worker raised
    ray.shutdown()


if __name__ == "__main__":
    main()
