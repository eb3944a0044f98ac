"""Handwritten digits with Lightning Fabric: every rank is its own consumer.

    python examples/fabric_digits.py            # 2 processes on the CPU, or all GPUs that are there
    python examples/fabric_digits.py --short    # fewer epochs, for a quick check

Each rank builds the same `SwiftLoader` and starts it with its own rank and device. The loader deals
the samples out over the ranks, so no distributed sampler is needed; and its batches are on the
device already, so they don't go through `fabric.setup_dataloaders`, which would do both again.

The data are the 1,797 images of 8 x 8 pixels that scikit-learn ships: nothing is downloaded.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from lightning.fabric import Fabric
from sklearn.datasets import load_digits
from torch import Tensor, nn

from swift_loader import SwiftLoader

NB_TEST = 297  # of the 1,797 images
WANTED_ACCURACY = 0.95


class Digits:
    """The training or the test part. Built inside each worker, from `dataset_kwargs`."""

    def __init__(self, train: bool) -> None:
        digits = load_digits()
        order = np.random.default_rng(0).permutation(len(digits.target))
        part = order[NB_TEST:] if train else order[:NB_TEST]
        self.images = (digits.images[part] / 16).astype(np.float32)  # [n, 8, 8], from 0 to 1
        self.labels = digits.target[part].astype(np.int64)
        self.train = train

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index]
        if self.train:
            # A shift of at most one pixel. The loader seeds numpy for each batch: the draws differ
            # between ranks and epochs, and come out the same in the next run.
            down, right = np.random.randint(0, 3, size=2)
            image = np.pad(image, 1)[down : down + 8, right : right + 8]
        return torch.from_numpy(image.copy())[None], int(self.labels[index])


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def make_loader(fabric: Fabric, train: bool, batch_size: int) -> SwiftLoader:
    loader = SwiftLoader(
        dataset_class=Digits,
        dataset_kwargs={"train": train},
        batch_size=batch_size,  # per rank
        nb_consumer=fabric.world_size,
        worker_per_consumer=2 if train else 1,
        shuffle=train,
        nearby_shuffle=0,  # 0: a full shuffle; the whole data set is in memory anyway
    )
    loader.start(consumer_index=fabric.global_rank, device=fabric.device)
    return loader


@torch.no_grad()
def measure_accuracy(fabric: Fabric, model: nn.Module, loader: SwiftLoader) -> float:
    """Over all ranks together, and exact: one rank sees each test sample, once; none is padded."""
    model.eval()
    seen = torch.zeros(2, device=fabric.device)  # correct, all
    for images, labels in loader:
        correct = (model(images).argmax(dim=1) == labels).sum()
        seen += torch.stack([correct, torch.tensor(len(labels), device=fabric.device)])
    model.train()
    correct_all, all_all = fabric.all_reduce(seen, reduce_op="sum").tolist()  # type: ignore[union-attr]
    assert all_all == NB_TEST
    return float(correct_all / all_all)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="8 epochs")
    args = parser.parse_args()
    nb_epochs = 8 if args.short else args.epochs

    fabric = Fabric(
        accelerator="auto",
        devices="auto" if torch.cuda.is_available() else 2,
        strategy="ddp",
    )
    fabric.launch()
    fabric.seed_everything(args.seed, verbose=False)  # the loaders take their seed from it, too

    plain_model = make_model()
    model, optimizer = fabric.setup(
        plain_model, torch.optim.Adam(plain_model.parameters(), lr=2e-3)
    )
    train_loader = make_loader(fabric, train=True, batch_size=args.batch_size)
    test_loader = make_loader(fabric, train=False, batch_size=args.batch_size)

    accuracy = 0.0
    for epoch in range(nb_epochs):
        began_s = time.perf_counter()
        loss_sum = torch.zeros((), device=fabric.device)
        for images, labels in train_loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            fabric.backward(loss)  # averages the gradients: every rank must make as many steps
            optimizer.step()
            loss_sum += loss.detach()
        took_s = time.perf_counter() - began_s
        accuracy = measure_accuracy(fabric, model, test_loader)
        fabric.print(
            f"epoch {epoch + 1:2d}/{nb_epochs}  loss {loss_sum.item() / len(train_loader):.3f}  "
            f"test accuracy {accuracy:.1%}  {len(train_loader) / took_s:.0f} steps/s"
        )

    fabric.print(f"what the loader of rank 0 did:\n{train_loader.stats()}")
    train_loader.close()
    test_loader.close()
    if accuracy < WANTED_ACCURACY:
        raise SystemExit(f"test accuracy {accuracy:.1%}, wanted {WANTED_ACCURACY:.0%}")


if __name__ == "__main__":
    main()
