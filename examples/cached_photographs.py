"""Photographs: decoded once, kept, and augmented each time that they are used.

    python examples/cached_photographs.py            # trains until it tells the photographs apart
    python examples/cached_photographs.py --short    # fewer files and epochs, for a quick check

The task is that of `jpeg_folder.py`. There, each epoch decodes every file again. Here, `dataset[i]`
only decodes, and the cache keeps what it returns; `transform` crops and flips, in the worker, with
draws that differ from epoch to epoch. A file in the cache's folder would make the next run begin
with everything decoded: see ``docs/cache.md``.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

import numpy as np
import torch
from jpeg_folder import CLASSES, CROP, PIECE, WANTED_ACCURACY, cut_photographs, make_model, to_float
from PIL import Image
from torch import Tensor, nn

from swift_loader import SwiftLoader

Sample = tuple[Tensor, int]


class Decoded:
    """One sample a file: ``(image, label)``, the image uint8 of shape ``[3, PIECE, PIECE]``."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*/*.jpg"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Sample:
        file = self.files[index]
        with Image.open(file) as picture:
            image = np.array(picture.convert("RGB"))
        return torch.from_numpy(image).permute(2, 0, 1), CLASSES.index(file.parent.name)


def augment(sample: Sample) -> Sample:
    """A random piece, perhaps mirrored."""
    image, label = sample
    x, y = random.randint(0, PIECE - CROP), random.randint(0, PIECE - CROP)
    image = image[:, y : y + CROP, x : x + CROP]
    return (image.flip(2) if random.random() < 0.5 else image), label


def middle(sample: Sample) -> Sample:
    """For tests: the piece in the middle."""
    image, label = sample
    start = (PIECE - CROP) // 2
    return image[:, start : start + CROP, start : start + CROP], label


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="400 files of each class, 4 epochs")
    short = parser.parse_args().short
    nb_files, epochs = (400, 4) if short else (1500, 6)
    torch.manual_seed(1)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        cut_photographs(folder, nb_train=nb_files, nb_test=nb_files // 5)
        with (
            SwiftLoader(
                Decoded,
                {"folder": folder / "train"},
                batch_size=64,
                worker_per_consumer=2,
                shuffle=True,
                nearby_shuffle=0,
                transform=augment,
                cache="500MB",
                seed=1,
            ) as train_loader,
            SwiftLoader(
                Decoded,
                {"folder": folder / "test"},
                batch_size=64,
                transform=middle,
                cache="500MB",
            ) as test_loader,
        ):
            for epoch in range(epochs):
                for images, labels in train_loader:
                    loss = nn.functional.cross_entropy(model(to_float(images)), labels)
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                model.eval()
                right = [
                    (model(to_float(images)).argmax(1) == labels) for images, labels in test_loader
                ]
                model.train()
                accuracy = torch.cat(right).float().mean().item()
                print(f"epoch {epoch + 1}/{epochs}  test accuracy {accuracy:.1%}", flush=True)
            kept = train_loader.stats().cache
            print(kept)
    assert kept is not None
    assert kept.kept == kept.misses == 2 * nb_files, "a file was decoded twice"
    print(f"decoded each file once, for {epochs} epochs")
    if accuracy < WANTED_ACCURACY:
        raise SystemExit(f"test accuracy {accuracy:.1%}, wanted {WANTED_ACCURACY:.0%}")


if __name__ == "__main__":
    main()
