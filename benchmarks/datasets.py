"""The samples of the workloads: importable map-style datasets over data in memory or on disk.

Every class can hand out torch tensors or numpy arrays (``as_torch``), because a peer that is made
for numpy must not pay for tensors that it never asked for; torch is imported only where it is used.
Lengths are large, so that no epoch ends inside a short window; the memory behind them is small and
is visited again and again.
"""

from __future__ import annotations

import io
import os
import random
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

NB_SAMPLES = 1 << 20


def _tensors(array: NDArray[Any], as_torch: bool) -> Any:
    """The same memory as a tensor, when tensors are wanted."""
    if not as_torch:
        return array
    import torch

    return torch.from_numpy(array)


class Images:
    """``(image, index)``: a 3x224x224 view of an array of `nb_images` images, and the index."""

    def __init__(
        self,
        dtype: str,
        nb_images: int = 128,
        nb_samples: int = NB_SAMPLES,
        as_torch: bool = True,
    ) -> None:
        pixels = np.random.default_rng(0).integers(
            0, 256, size=(nb_images, 3, 224, 224), dtype=np.uint8
        )
        self._images = _tensors(pixels.astype(dtype, copy=False), as_torch)
        self._nb_images = nb_images
        self._nb_samples = nb_samples

    def __len__(self) -> int:
        return self._nb_samples

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self._images[index % self._nb_images], index


class Tokens:
    """``{"x", "y"}``: two int64 views of one long array, `y` one token after `x`."""

    def __init__(
        self, context_length: int = 2048, nb_tokens: int = 1 << 20, as_torch: bool = True
    ) -> None:
        tokens = np.random.default_rng(0).integers(0, 50_000, size=nb_tokens, dtype=np.int64)
        self._tokens = _tensors(tokens, as_torch)
        self._context_length = context_length
        self._nb_starts = nb_tokens - context_length - 1

    def __len__(self) -> int:
        return NB_SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        first = index * 37 % self._nb_starts
        last = first + self._context_length
        return {"x": self._tokens[first:last], "y": self._tokens[first + 1 : last + 1]}


class Rows:
    """``(row, index)``: a float32[16] view of a table, and the index."""

    def __init__(
        self, nb_samples: int = NB_SAMPLES, nb_rows: int = 1 << 14, as_torch: bool = True
    ) -> None:
        table = np.random.default_rng(0).random((nb_rows, 16), dtype=np.float32)
        self._rows = _tensors(table, as_torch)
        self._nb_rows = nb_rows
        self._nb_samples = nb_samples

    def __len__(self) -> int:
        return self._nb_samples

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self._rows[index % self._nb_rows], index


class ManyTensors:
    """A nested dict and list of `nb_tensors` (a multiple of 4) float32[`width`], made before."""

    def __init__(
        self, nb_tensors: int = 64, width: int = 16, nb_rows: int = 64, as_torch: bool = True
    ) -> None:
        values = np.random.default_rng(0).random((nb_rows, nb_tensors, width), dtype=np.float32)
        self._samples = [self._nested(list(_tensors(row, as_torch))) for row in values]

    def __len__(self) -> int:
        return NB_SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._samples[index % len(self._samples)]

    def _nested(self, tensors: list[Any]) -> dict[str, Any]:
        q = len(tensors) // 4
        return {
            "flat": {f"f{i}": tensor for i, tensor in enumerate(tensors[:q])},
            "list": tensors[q : 2 * q],
            "nested": {
                "left": tensors[2 * q : 3 * q],
                "right": {f"r{i}": tensor for i, tensor in enumerate(tensors[3 * q :])},
            },
        }


class Bytes:
    """One uint8 view of `nb_bytes` bytes: for the cost of a batch as it grows."""

    def __init__(self, nb_bytes: int, as_torch: bool = True) -> None:
        self._bytes = _tensors(np.ones(nb_bytes, dtype=np.uint8), as_torch)

    def __len__(self) -> int:
        return NB_SAMPLES

    def __getitem__(self, index: int) -> Any:
        return self._bytes


class BigTable:
    """``(row, index)`` of an array that the caller hands over: for the memory it takes to share."""

    def __init__(self, table: NDArray[np.float32]) -> None:
        self._rows = table

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return _tensors(self._rows[index], True), index


class Jpegs:
    """``(image, index)``: a JPEG file decoded by Pillow, cropped and flipped at random; uint8."""

    crop = 224

    def __init__(self, folder: str, as_torch: bool = True) -> None:
        self._paths = sorted(os.path.join(folder, name) for name in os.listdir(folder))
        self._as_torch = as_torch

    def __len__(self) -> int:
        return NB_SAMPLES

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image

        with Image.open(self._paths[index % len(self._paths)]) as image:
            pixels = np.asarray(image.convert("RGB"))
        top = random.randrange(pixels.shape[0] - self.crop + 1)
        left = random.randrange(pixels.shape[1] - self.crop + 1)
        pixels = pixels[top : top + self.crop, left : left + self.crop]
        if random.random() < 0.5:
            pixels = pixels[:, ::-1]
        return _tensors(np.ascontiguousarray(pixels.transpose(2, 0, 1)), self._as_torch), index


def cut_jpegs(folder: Path, nb_files: int = 64, side: int = 256) -> None:
    """Fill `folder` with JPEG files cut from the two photographs that scikit-learn ships."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    photographs = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    places = random.Random(0)
    for number in range(nb_files):
        photograph = photographs[number % len(photographs)]
        left = places.randrange(photograph.width - side + 1)
        top = places.randrange(photograph.height - side + 1)
        cut = photograph.crop((left, top, left + side, top + side))
        cut.save(folder / f"{number:03}.jpg", quality=90)


@cache
def _text_lines(nb_chars: int = 1 << 20) -> tuple[str, ...]:
    """The first `nb_chars` characters of Python's own standard library, line by line."""
    text = io.StringIO()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text.write(path.read_text(encoding="utf-8", errors="replace"))
        if text.tell() >= nb_chars:
            break
    return tuple(text.getvalue()[:nb_chars].splitlines(keepends=True))


def tokenize(line: str) -> list[int]:
    """The words of `line` as numbers below 2**16, in pure Python, one character after the other."""
    tokens: list[int] = []
    word = 0
    for character in line:
        if character.isalnum() or character == "_":
            word = (word * 31 + ord(character)) & 0xFFFF
        elif word:
            tokens.append(word)
            word = 0
    if word:
        tokens.append(word)
    return tokens


class Text:
    """``(tokens, index)``: real text tokenized line by line, int64[256].

    A sample reads `nb_chars` characters, which takes about 1 ms. One in `slow_every` samples (0:
    none), always the same ones and strewn at random, does its work `slow_factor` times.
    """

    def __init__(
        self,
        nb_chars: int = 10_000,
        slow_every: int = 0,
        slow_factor: int = 50,
        nb_samples: int = NB_SAMPLES,
        as_torch: bool = True,
    ) -> None:
        self._lines = _text_lines()
        self._nb_chars = nb_chars
        self._slow_every = slow_every
        self._slow_factor = slow_factor
        self._nb_samples = nb_samples
        self._as_torch = as_torch

    def __len__(self) -> int:
        return self._nb_samples

    def _read(self, index: int) -> list[int]:
        place = index * 7919 % len(self._lines)
        nb_left = self._nb_chars
        tokens: list[int] = []
        while nb_left > 0:
            line = self._lines[place]
            tokens += tokenize(line)
            nb_left -= len(line)
            place = (place + 1) % len(self._lines)
        return tokens

    def is_slow(self, index: int) -> bool:
        """Whether this sample is one of the slow ones."""
        mixed = (index * 0x9E3779B97F4A7C15 + 0x7F4A7C15) % (1 << 64) >> 20
        return self._slow_every > 0 and mixed % self._slow_every == 0

    def __getitem__(self, index: int) -> tuple[Any, int]:
        for _ in range(self._slow_factor if self.is_slow(index) else 1):
            tokens = self._read(index)
        sample = np.zeros(256, dtype=np.int64)
        sample[: len(tokens)] = tokens[:256]
        return _tensors(sample, self._as_torch), index
