"""A folder of JPEG files, decoded and augmented in the workers.

    python examples/jpeg_folder.py            # trains until it tells the two photographs apart
    python examples/jpeg_folder.py --short    # fewer files and epochs, for a quick check

Two photographs ship with scikit-learn: a Chinese temple and a flower. This cuts them into many
small JPEG files, one folder a class, and trains a small network to say which photograph a piece is
from. Test pieces come from the right part of each photograph, training pieces from the left: no
pixel is in both. Decoding is what costs here, and it happens in the worker processes.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Tensor, nn

from swift_loader import SwiftLoader

CLASSES = ("china", "flower")
PIECE = 96  # pixels, both sides of a file's image
CROP = 64  # pixels, both sides of a sample
WANTED_ACCURACY = 0.8


def cut_photographs(folder: Path, nb_train: int, nb_test: int) -> None:
    """Write `folder/{train,test}/{china,flower}/*.jpg`."""
    draw = random.Random(0)
    for name, photograph in zip(CLASSES, load_sample_images().images, strict=True):
        height, width, _ = photograph.shape
        border = int(width * 0.65)
        for part, nb_files, left, right in (
            ("train", nb_train, 0, border),
            ("test", nb_test, border, width),
        ):
            here = folder / part / name
            here.mkdir(parents=True)
            for number in range(nb_files):
                x = draw.randrange(left, right - PIECE + 1)
                y = draw.randrange(0, height - PIECE + 1)
                piece = Image.fromarray(photograph[y : y + PIECE, x : x + PIECE])
                piece.save(here / f"{number:05d}.jpg", quality=90)


class JpegFolder:
    """One sample a file: `(image, label)`, the image a uint8 tensor of shape [3, CROP, CROP]."""

    def __init__(self, folder: Path, augment: bool) -> None:
        self.files = sorted(folder.glob("*/*.jpg"))
        self.augment = augment

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        file = self.files[index]
        with Image.open(file) as picture:
            image = np.asarray(picture.convert("RGB"))
        # The loader seeds `random` for each batch, so augmentation repeats from run to run.
        room = PIECE - CROP
        if self.augment:
            x, y = random.randint(0, room), random.randint(0, room)
        else:
            x = y = room // 2
        image = image[y : y + CROP, x : x + CROP]
        if self.augment and random.random() < 0.5:
            image = image[:, ::-1]
        # The copy is for torch, which takes no negative strides.
        return torch.from_numpy(image.copy()).permute(2, 0, 1), CLASSES.index(file.parent.name)


def make_model() -> nn.Module:
    layers: list[nn.Module] = []
    for nb_in, nb_out in ((3, 16), (16, 32), (32, 64)):
        layers += [
            nn.Conv2d(nb_in, nb_out, 3, stride=2, padding=1),
            nn.BatchNorm2d(nb_out),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 2))


def to_float(images: Tensor) -> Tensor:
    """Bytes travel to the device, a quarter of the size; the division happens there."""
    return images.float() / 255 - 0.5


@torch.no_grad()
def measure_accuracy(model: nn.Module, loader: SwiftLoader) -> float:
    model.eval()
    correct = seen = 0
    for images, labels in loader:
        correct += int((model(to_float(images)).argmax(dim=1) == labels).sum())
        seen += len(labels)
    model.train()
    return correct / seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--files", type=int, default=1500, help="training files of each class")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--short", action="store_true", help="400 files, 4 epochs")
    args = parser.parse_args()
    if args.short:
        args.files, args.epochs = 400, 4

    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = make_model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        cut_photographs(folder, nb_train=args.files, nb_test=args.files // 5)
        with (
            SwiftLoader(
                dataset_class=JpegFolder,
                dataset_kwargs={"folder": folder / "train", "augment": True},
                batch_size=args.batch_size,
                worker_per_consumer=args.workers,
                shuffle=True,
                nearby_shuffle=0,  # files are sorted by class: only a full shuffle mixes them
                seed=1,
            ) as train_loader,
            SwiftLoader(
                dataset_class=JpegFolder,
                dataset_kwargs={"folder": folder / "test", "augment": False},
                batch_size=args.batch_size,
                worker_per_consumer=1,
                shuffle=False,
            ) as test_loader,
        ):
            train_loader.start(consumer_index=0, device=device)
            test_loader.start(consumer_index=0, device=device)
            accuracy = 0.0
            for epoch in range(args.epochs):
                loss_sum = 0.0
                for images, labels in train_loader:
                    loss = nn.functional.cross_entropy(model(to_float(images)), labels)
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    loss_sum += loss.item()
                accuracy = measure_accuracy(model, test_loader)
                print(
                    f"epoch {epoch + 1}/{args.epochs}  loss {loss_sum / len(train_loader):.3f}  "
                    f"test accuracy {accuracy:.1%}",
                    flush=True,
                )
            print(f"what the loader did:\n{train_loader.stats()}")
    if accuracy < WANTED_ACCURACY:
        raise SystemExit(f"test accuracy {accuracy:.1%}, wanted {WANTED_ACCURACY:.0%}")


if __name__ == "__main__":
    main()
