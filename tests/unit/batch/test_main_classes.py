"""Classes of a script's `__main__` travel to another process, and their instances back.

Here the script is a process of its own, run in every way that a script can be; this process, whose
`__main__` is another one, plays the worker.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swift_loader.batch.arena import Arena
from swift_loader.batch.codec import encode
from swift_loader.batch.shipping import unpack

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 60.0

SCRIPT = '''
import collections, dataclasses, enum, functools, json, os, threading
import numpy as np
import torch
from torch.utils.data import Dataset as TorchDataset

class Colour(enum.Enum):
    RED = 1
    BLUE = 2

@dataclasses.dataclass
class Sample:
    image: torch.Tensor
    colour: Colour = Colour.RED
    sizes: list = dataclasses.field(default_factory=list)

Pair = collections.namedtuple("Pair", "left right")
TABLE = np.arange(100, dtype=np.float32)
LOCK = threading.Lock()  # not used by what travels
COUNT = 0

class Mistake(Exception):
    def __init__(self, index):
        super().__init__(f"sample {index}")
        self.index = index

def scaled(values, by):
    global COUNT
    COUNT += 1
    return torch.from_numpy(values) * by

def count():
    return COUNT

class Base(TorchDataset):
    def __init__(self, n):
        super().__init__()
        self.n = n

    def __len__(self):
        return self.n

class Dataset(Base):
    def __init__(self, n, transform):
        super().__init__(n)
        self.transform = transform

    def __getitem__(self, i):
        if i == self.n - 1:
            raise Mistake(i)
        return Sample(self.transform(TABLE[i:i + 4]), Colour(1 + i % 2), [i, count()])

def collate(samples):
    return {"samples": samples, "pair": Pair(torch.stack([s.image for s in samples]), None)}

def main():
    class Local:
        """Of a function, as in a script with a main."""
        def __init__(self, inner):
            self.inner = inner

    from swift_loader.batch.codec import decode
    from swift_loader.batch.shipping import pack

    folder = os.environ["FOLDER"]
    payload = pack({
        "dataset_class": Dataset,
        "dataset_kwargs": {"n": 10, "transform": functools.partial(scaled, by=2.0)},
        "collate_fn": lambda samples: Local(collate(samples)),
    })
    with open(folder + "/payload", "wb") as file:
        file.truncate(payload.nbytes)
    import mmap
    with open(folder + "/payload", "r+b") as file, mmap.mmap(file.fileno(), 0) as region:
        view = memoryview(region)
        payload.write(view)
        view.release()
    print("packed", flush=True)
    with open(folder + "/go") as fifo:
        fifo.read()
    base = np.fromfile(folder + "/base", np.uint8)
    got, kind, args = decode(open(folder + "/skeleton", "rb").read(), base)
    batch = got.inner
    sample = batch["samples"][1]
    print(json.dumps({
        "local": isinstance(got, Local),
        "sample": isinstance(sample, Sample),
        "image": sample.image.tolist(),
        "colour": sample.colour is Colour.BLUE,
        "sizes": sample.sizes,
        "pair": isinstance(batch["pair"], Pair),
        "stacked": list(batch["pair"].left.shape),
        "mistake": kind is Mistake,
        "message": str(kind(*args)),
        "count": COUNT,
    }), flush=True)

main()
'''


def _commands(folder: Path) -> dict[str, tuple[list[str], str | None]]:
    """Ways to run the script: the arguments, and what comes on standard input."""
    path = folder / "script.py"
    cell = (
        f"exec(compile(open({str(path)!r}).read(), '<cell>', 'exec'), vars(__import__('__main__')))"
    )
    return {
        "a file": ([str(path)], None),
        "-c": (["-c", SCRIPT], None),
        "standard input": (["-"], SCRIPT),
        "a cell": (["-c", cell], None),
    }


@pytest.mark.parametrize("how", ["a file", "-c", "standard input", "a cell"])
def test_what_a_script_defines_travels_and_comes_back(how: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    os.mkfifo(tmp_path / "go")
    arguments, text = _commands(tmp_path)[how]
    script = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}", "FOLDER": str(tmp_path)},
    )
    try:
        assert script.stdin is not None
        assert script.stdout is not None
        script.stdin.write(text or "")
        script.stdin.close()
        script.stdin = None
        said = script.stdout.readline()
        if said == "packed\n":
            _be_the_worker(tmp_path)
        out, err = script.communicate(timeout=TIMEOUT_S)
    finally:
        script.kill()
        script.wait()
    assert said == "packed\n", err
    assert script.returncode == 0, err
    assert json.loads(out) == {
        "local": True,
        "sample": True,
        "image": [2, 4, 6, 8],
        "colour": True,
        "sizes": [1, 2],  # the second sample; `count` and `scaled` share their module's globals
        "pair": True,
        "stacked": [2, 4],
        "mistake": True,
        "message": "sample 9",
        "count": 0,  # that of the script itself
    }


def _be_the_worker(folder: Path) -> None:
    with open(folder / "payload", "r+b") as file:
        region = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    parts = unpack(memoryview(region))
    dataset = parts["dataset_class"](**parts["dataset_kwargs"])
    batch: Any = parts["collate_fn"]([dataset[0], dataset[1]])
    with pytest.raises(Exception, match="sample 9") as mistake:
        dataset[len(dataset) - 1]
    buffer = bytearray(1 << 16)
    arena = Arena(memoryview(buffer))
    error = (mistake.type, (mistake.value.index,))  # type: ignore[attr-defined]
    skeleton = encode((batch, *error), arena)
    (folder / "base").write_bytes(buffer[: arena.used_bytes])
    (folder / "skeleton").write_bytes(skeleton)
    (folder / "go").write_text("go")
