"""One loader for several trainings on a machine: this script makes the batches, once for all.

    python examples/sharing_producer.py &                    # this script
    python examples/sharing_train.py --learning-rate 0.1 &   # as many of these as wanted,
    python examples/sharing_train.py --learning-rate 0.01    # each in its own time
    python examples/sharing_producer.py --short              # fewer epochs, for a quick check

The data are scikit-learn's 1,797 scans of digits. Preparing a sample takes as long here as reading
and cropping a photograph would, which is why two trainings share the work.
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional

from swift_loader import SwiftLoader
from swift_loader.sharing import TensorProducer

SIDE = 8  # pixels


class Digits:
    """Scans of digits, each turned and shifted a little anew whenever it is asked for."""

    def __init__(self) -> None:
        digits = load_digits()
        self.images = torch.tensor(digits.images, dtype=torch.float32).reshape(-1, 1, SIDE, SIDE)
        self.labels = torch.tensor(digits.target)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        angle, right, down = (torch.rand(3) - 0.5) * torch.tensor([0.5, 0.4, 0.4])
        cos, sin = torch.cos(angle), torch.sin(angle)
        turn = torch.stack([cos, -sin, right, sin, cos, down]).reshape(1, 2, 3)
        grid = functional.affine_grid(turn, [1, 1, SIDE, SIDE], align_corners=False)
        image = functional.grid_sample(
            self.images[index : index + 1] / 16, grid, align_corners=False
        )
        return image[0, 0], self.labels[index]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--port", default="5556")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--consumers", type=int, default=1, help="wait for as many to begin")
    parser.add_argument("--short", action="store_true", help="3 epochs")
    options = parser.parse_args()

    loader = SwiftLoader(Digits, batch_size=64, worker_per_consumer=2, shuffle=True)
    with loader, TensorProducer(loader, port=options.port) as producer:
        while len(producer.consumers()) < options.consumers:
            producer.serve(None)
        for epoch in range(3 if options.short else options.epochs):
            nb_batches = sum(1 for _ in producer)
            takers = ", ".join(consumer.name for consumer in producer.consumers())
            print(f"epoch {epoch}: {nb_batches} batches for {takers or 'nobody'}", flush=True)
        producer.join()


if __name__ == "__main__":
    main()
