"""The data and the network of the examples for frameworks: scikit-learn's 1,797 scans of digits."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

__all__ = ["NB_TEST", "NB_TRAIN", "Digits", "make_model"]

NB_TEST, NB_TRAIN = 297, 1500


class Digits:
    """The training or the test part. Built inside each worker."""

    def __init__(self, train: bool) -> None:
        digits = load_digits()
        order = np.random.default_rng(0).permutation(len(digits.target))
        part = order[NB_TEST:] if train else order[:NB_TEST]
        self.images = torch.tensor(digits.images[part] / 16, dtype=torch.float32)[:, None]
        self.labels = torch.tensor(digits.target[part])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )
