"""On a GPU: what the loader costs a training step, and whether its copies are right.

``python -m benchmarks.gpu`` takes a few minutes, and says so plainly where there is no GPU.

A step trains a small convolutional network on `image-f32`, deep enough that the workers keep up. It
is measured on one batch that stays on the device, fed by the loader, and fed by torch's
DataLoader with ``pin_memory=True`` and ``non_blocking=True``, in turn. Then every element of many
batches is compared on the device with what it must be, while the device is kept busy and slots are
reused as fast as they come back.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import nn

from benchmarks import fresh, machine, table
from benchmarks.contestants import OURS, TORCH
from benchmarks.datasets import NB_SAMPLES, Images
from benchmarks.figures import Figure
from benchmarks.rounds import in_turn
from benchmarks.spread import ratios, spread
from benchmarks.workloads import Workload

NB_WORKER = 8
_RESIDENT = "batch on the device"
_STEP_BAR = 1.05
_NB_WARM_STEPS = 100  # until every slot is there and pinned
_KEEP_UP = 2.0  # a step takes this many times what the loader needs for a batch
_WORKLOAD = Workload("image-f32", Images, 64, {"dtype": "float32"})


class Network(nn.Module):
    """Convolutions of the size of a small ResNet's; `nb_block` sets how long a step takes."""

    def __init__(self, nb_block: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 7, stride=4, padding=3)
        self.blocks = nn.ModuleList(nn.Conv2d(64, 64, 3, padding=1) for _ in range(nb_block))
        self.head = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.stem(images).relu()
        for block in self.blocks:
            hidden = hidden + block(hidden).relu()
        out: torch.Tensor = self.head(hidden.mean(dim=(2, 3)))
        return out


class Step:
    """One training step: forward, backward, update."""

    def __init__(self, nb_block: int) -> None:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
        self._network = Network(nb_block).cuda()
        self._optimizer = torch.optim.SGD(self._network.parameters(), lr=1e-4)

    def __call__(self, images: torch.Tensor, indices: torch.Tensor) -> None:
        loss = nn.functional.cross_entropy(self._network(images / 255), indices % 10)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()


def _resident_batches() -> Iterator[Any]:
    dataset = _WORKLOAD.dataset()
    samples = [dataset[index] for index in range(_WORKLOAD.batch_size)]
    images = torch.stack([image for image, _ in samples]).cuda()
    indices = torch.tensor([index for _, index in samples]).cuda()
    while True:
        yield images, indices


def _our_batches() -> Iterator[Any]:
    from benchmarks.ours import loader

    with loader(_WORKLOAD, NB_WORKER) as ready:
        ready.start(consumer_index=0, device=torch.device("cuda", 0))
        while True:
            yield from ready


def _torch_batches() -> Iterator[Any]:
    from benchmarks.peers.torch_dataloader import loader

    ready = loader(_WORKLOAD, NB_WORKER, pin_memory=True)
    while True:
        for images, indices in ready:
            yield images.cuda(non_blocking=True), indices.cuda(non_blocking=True)


_BATCHES: dict[str, Callable[[], Iterator[Any]]] = {
    _RESIDENT: _resident_batches,
    OURS: _our_batches,
    TORCH: _torch_batches,
}


def step_s(contestant: str, nb_block: int, nb_step: int) -> dict[str, float]:
    """Mean seconds of a step, the device synchronized only before and after all of them."""
    step = Step(nb_block)
    batches = _BATCHES[contestant]()
    for images, indices in islice(batches, _NB_WARM_STEPS):
        step(images, indices)
    torch.cuda.synchronize()
    start_s = perf_counter()
    for images, indices in islice(batches, nb_step):
        step(images, indices)
    torch.cuda.synchronize()
    return {"step_s": (perf_counter() - start_s) / nb_step}


def batch_s(nb_batch: int) -> float:
    """Mean seconds in which the loader puts a batch on the device when nothing else is done."""
    batches = _our_batches()
    for _ in islice(batches, _NB_WARM_STEPS):
        pass
    torch.cuda.synchronize()
    start_s = perf_counter()
    for _ in islice(batches, nb_batch):
        pass
    torch.cuda.synchronize()
    return (perf_counter() - start_s) / nb_batch


def blocks_to_keep_up(nb_step: int) -> int:
    """The smallest network (a power of two of blocks) whose step lets the workers keep up."""
    needed_s = _KEEP_UP * fresh.call(batch_s, nb_batch=nb_step)
    nb_block = 2
    while _resident_step_s(nb_block) < needed_s:
        nb_block *= 2
    return nb_block


def _resident_step_s(nb_block: int) -> float:
    answer = fresh.call(step_s, contestant=_RESIDENT, nb_block=nb_block, nb_step=30)
    return float(answer["step_s"])


class Numbered:
    """``(values, index)``: float32[`width`], each its own place plus the index times 1,000."""

    def __init__(self, width: int = 1 << 16) -> None:
        self._places = torch.arange(width, dtype=torch.float32) % 1000

    def __len__(self) -> int:
        return NB_SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._places + index % 16_000 * 1000, index


def wrong_elements(nb_batch: int) -> dict[str, int]:
    """Elements on the device that are not what they must be, of how many.

    Before each comparison the device sleeps, so that kernels wait in line while the loader reuses
    the slots behind them; nothing is synchronized until the end, and no batch is kept.
    """
    from swift_loader import SwiftLoader

    device = torch.device("cuda", 0)
    width = 1 << 16
    places = torch.arange(width, dtype=torch.float32, device=device) % 1000
    nb_wrong = torch.zeros((), dtype=torch.int64, device=device)
    with SwiftLoader(
        dataset_class=Numbered,
        dataset_kwargs={"width": width},
        batch_size=32,
        worker_per_consumer=NB_WORKER,
        shuffle=True,
        data_queue_size=2,
    ) as loader:
        loader.start(consumer_index=0, device=device)
        for values, indices in islice(loader, nb_batch):
            torch.cuda._sleep(2_000_000)  # type: ignore[no-untyped-call]  # about 1 ms
            nb_wrong += (values != places + (indices % 16_000 * 1000)[:, None]).sum()
            del values, indices
        return {"nb_wrong": int(nb_wrong), "nb_element": nb_batch * 32 * width}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write ``gpu.json`` into ``--out``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    chosen = parser.parse_args(arguments)
    if not fresh.call(torch.cuda.is_available):
        print("There is no GPU that torch can use here: nothing was measured.")
        return
    chosen.out.mkdir(parents=True, exist_ok=True)
    nb_step, nb_rounds = (50, 2) if chosen.quick else (200, chosen.rounds)

    checked = fresh.call(wrong_elements, nb_batch=200 if chosen.quick else 1000)
    print(f"copies: {checked['nb_wrong']:,} wrong of {checked['nb_element']:,} elements")
    nb_block = blocks_to_keep_up(nb_step)
    rounds = in_turn(
        list(_BATCHES),
        lambda who: fresh.call(step_s, contestant=who, nb_block=nb_block, nb_step=nb_step),
        nb_rounds,
        f"training step, {nb_block} blocks",
    )
    alone = rounds.column(_RESIDENT, "step_s")
    figures = [
        Figure(
            "gpu",
            f"step fed by {who} over the step on a {_RESIDENT}",
            ratios(rounds.column(who, "step_s"), alone),
            bar=_STEP_BAR if who == OURS else None,
            ours=f"{spread(rounds.column(who, 'step_s')).median * 1e3:.2f} ms",
            theirs=f"{spread(alone).median * 1e3:.2f} ms",
        )
        for who in (OURS, TORCH)
        if rounds.column(who, "step_s")
    ]
    print(table.figures(figures))
    result = {
        "machine": machine.describe() | {"gpu": fresh.call(torch.cuda.get_device_name, device=0)},
        "copies": checked,
        "nb_block": nb_block,
        "figures": [figure.to_json() for figure in figures],
    }
    (chosen.out / "gpu.json").write_text(json.dumps(result, indent=1) + "\n")
    if checked["nb_wrong"]:
        raise SystemExit("copies to the device are wrong")


if __name__ == "__main__":
    main()
