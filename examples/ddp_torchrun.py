"""DistributedDataParallel under torchrun, on a data set that doesn't divide by the ranks.

    torchrun --nproc_per_node 2 examples/ddp_torchrun.py
    torchrun --nproc_per_node 2 examples/ddp_torchrun.py --short    # fewer epochs, a quick check

All ranks make the same number of steps and see each sample once, so neither a sampler nor `join` is
needed; with the CPU and gloo, or with a GPU a rank and NCCL.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from digits import NB_TEST, Digits, make_model
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from swift_loader import SwiftLoader

WANTED_ACCURACY = 0.93


def make_loader(train: bool, device: torch.device) -> SwiftLoader:
    loader = SwiftLoader(
        Digits,
        {"train": train},
        batch_size=32,
        nb_consumer=dist.get_world_size(),
        shuffle=train,
        nearby_shuffle=0,
    )
    loader.start(dist.get_rank(), device)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--short", action="store_true", help="8 epochs instead of 16")
    args = parser.parse_args()

    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group()
    torch.manual_seed(1)
    model = DistributedDataParallel(make_model().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    accuracy = 0.0
    with make_loader(True, device) as train_loader, make_loader(False, device) as test_loader:
        for epoch in range(8 if args.short else 16):
            for images, labels in train_loader:
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            accuracy = measure_accuracy(model, test_loader, device)
            if dist.get_rank() == 0:
                print(f"epoch {epoch + 1}: {accuracy:.1%} right, {len(train_loader)} steps a rank")
    dist.destroy_process_group()
    if accuracy < WANTED_ACCURACY:
        raise SystemExit(f"test accuracy {accuracy:.1%}, wanted {WANTED_ACCURACY:.0%}")


if __name__ == "__main__":
    main()
