"""Run by torchrun: DDP over an uneven data set; every step averages gradients and adds up samples.

torchrun --nproc_per_node 2 -m tests.frameworks.ddp_run FOLDER [torch|accelerate]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from swift_loader import ClosedError, SwiftLoader
from tests.datasets import Numbers

NB_SAMPLES, NB_EPOCHS = 101, 2


def make_loader(world_size: int) -> SwiftLoader:
    return SwiftLoader(Numbers, {"n": NB_SAMPLES}, 8, nb_consumer=world_size, shuffle=True)


def with_torch(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    seen: list[list[int]] = []
    with make_loader(world_size) as loader:  # iterating starts it: as the rank of this process
        for _ in range(NB_EPOCHS):
            seen.append([])
            for rows, indices in loader:
                optimizer.zero_grad()
                model(rows / 100).square().mean().backward()
                optimizer.step()
                total = torch.tensor(len(indices))
                dist.all_reduce(total)  # hangs where a rank makes a step more than another
                seen[-1] += indices.tolist()
    write(folder, "torch", rank, seen=seen)
    dist.destroy_process_group()


def with_accelerate(folder: Path) -> None:
    from accelerate import Accelerator, skip_first_batches

    accelerator = Accelerator(cpu=True)
    loader = make_loader(accelerator.num_processes)  # iterating starts it
    untouched = accelerator.prepare_data_loader(loader) is loader
    with pytest.raises(ClosedError, match="agree on the seed in start"):
        next(iter(skip_first_batches(loader, 2)))
    skipped = rest_after_skipping(accelerator.num_processes)
    linear = nn.Linear(4, 1)
    model, optimizer, prepared = accelerator.prepare(
        linear, torch.optim.SGD(linear.parameters(), lr=1e-4), loader
    )
    accelerator.register_for_checkpointing(loader)
    seen: list[int] = []
    gathered: list[int] = []
    for step, (rows, indices) in enumerate(prepared):
        optimizer.zero_grad()
        accelerator.backward(model(rows / 100).square().mean())
        optimizer.step()
        seen += indices.tolist()
        padded = torch.full((8,), -1)
        padded[: len(indices)] = indices
        gathered += [i for i in accelerator.gather(padded).tolist() if i >= 0]
        if step == 2:
            accelerator.save_state(str(folder / "state"))
            accelerator.wait_for_everyone()
    accelerator.load_state(str(folder / "state"))
    again = [i for _, indices in loader for i in indices.tolist()]
    write(
        folder,
        "accelerate",
        accelerator.process_index,
        seen=seen,
        gathered=gathered,
        again=again,
        untouched=untouched and prepared is loader,
        skipped=skipped,
    )
    loader.close()
    accelerator.end_training()


def rest_after_skipping(world_size: int) -> list[bool]:
    """Whether accelerate, of a loader that is not started yet, skips batches of this rank."""
    from accelerate import skip_first_batches

    same = []
    for options in ({}, {"shuffle": True, "seed": 3}):
        with SwiftLoader(
            Numbers, {"n": NB_SAMPLES}, 8, nb_consumer=world_size, **options
        ) as loader:
            rest = [indices.tolist() for _, indices in skip_first_batches(loader, 2)]
            same.append(rest == [indices.tolist() for _, indices in loader][2:])
    return same


def write(folder: Path, name: str, rank: int, **facts: Any) -> None:
    (folder / f"{name}{rank}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    {"torch": with_torch, "accelerate": with_accelerate}[sys.argv[2]](Path(sys.argv[1]))
