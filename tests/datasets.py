"""Datasets that tests share. Importable, so that they travel to workers by reference."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import random
import signal
import time
import warnings
from collections import namedtuple
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from swift_loader import random_generators


class Numbers:
    """Sample `i` is ``(a row that holds i, i)``."""

    def __init__(self, n: int, width: int = 4) -> None:
        self.n = n
        self.width = width

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        if not 0 <= i < self.n:
            raise IndexError(i)
        return torch.full((self.width,), float(i)), i


class Stream:
    """The samples of `Numbers`, one after the other, and no length."""

    def __init__(self, n: int) -> None:
        self.numbers = Numbers(n)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        return (self.numbers[i] for i in range(len(self.numbers)))


class Mute(Numbers):
    """Sends what it prints elsewhere, as some libraries do that are chatty."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)


class Uneven(Numbers):
    """Some samples take longer, so that workers overtake each other."""

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        if i % 11 == 0:
            time.sleep(0.01)
        return super().__getitem__(i)


class Augmented(Numbers):
    """Draws from all three generators."""

    def __getitem__(self, i: int) -> dict[str, Any]:  # type: ignore[override]
        return {
            "index": i,
            "random": random.random(),
            "numpy": np.random.rand(),
            "torch": torch.rand(2),
        }


class AugmentedByItsOwn(Numbers):
    """The same from generators of the batch, which a worker that is a thread can seed, too."""

    def __getitem__(self, i: int) -> dict[str, Any]:  # type: ignore[override]
        own = random_generators()
        return {
            "index": i,
            "random": own.python.random(),
            "numpy": own.numpy.random(),
            "torch": torch.rand(2, generator=own.torch),
        }


class Drawn(Numbers):
    """Draws from all three generators, and texts of changing length, so that slots grow."""

    def __getitem__(self, i: int) -> dict[str, Any]:  # type: ignore[override]
        return {
            "index": i,
            "draws": torch.tensor([random.random(), np.random.rand(), torch.rand(()).item()]),
            "text": "x" * random.randrange(12_000),
        }


class Texts(Numbers):
    """Texts of many lengths, up to 20,000 characters."""

    @staticmethod
    def text(i: int) -> str:
        return f"{i}," * (i * 331 % 5000)

    def __getitem__(self, i: int) -> dict[str, Any]:  # type: ignore[override]
        return {"text": self.text(i), "index": i}


class Indices(Numbers):
    """Sample `i` is `i`, and a whole batch of them costs next to nothing."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


class Asked:
    """Tells what it was asked for, by keys of any type; has no length."""

    def __getitem__(self, key: Any) -> tuple[str, Any]:
        if key == "bad":
            raise LookupError(key)
        return type(key).__name__, key


class Rows:
    """Samples are what a sequence of rows holds."""

    def __init__(self, it: Sequence[dict[str, Any]]) -> None:
        self.rows = it

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return self.rows[i]


class OverArray:
    """Reads all of row `i` of an array that came as an argument."""

    def __init__(self, it: np.ndarray[Any, Any]) -> None:
        self.array = it

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, i: int) -> float:
        return float(self.array[i].sum())


class WritesArray(OverArray):
    """Counts in the array itself."""

    def __getitem__(self, i: int) -> dict[str, int]:  # type: ignore[override]
        self.array[i] += 1
        time.sleep(0.001)
        return {"seen": int(self.array[i]), "index": i, "pid": os.getpid()}


class CountsPickling:
    """Counts how often it was pickled in this process."""

    times = 0

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __reduce__(self) -> tuple[Any, ...]:
        type(self).times += 1
        return CountsPickling, (self.array,)


class OfObject(Numbers):
    """Takes any object beside, and needs it."""

    def __init__(self, n: int, it: CountsPickling) -> None:
        super().__init__(n)
        self.nbytes = it.array.nbytes


class OfSize:
    """Sample `i` is `sizes[i]` bytes that are each `i` + 1, and `i`."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.full((self.sizes[i],), i + 1, dtype=torch.uint8), i


class Raises(Numbers):
    """The samples of `bad` raise."""

    def __init__(self, n: int, bad: tuple[int, ...], error: type[Exception] = ValueError) -> None:
        super().__init__(n)
        self.bad = frozenset(bad)
        self.error = error

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        if i in self.bad:
            raise self.error(f"sample {i} is broken")
        return super().__getitem__(i)


class NoMessage(Exception):
    """Its constructor does not take what `args` holds."""

    def __init__(self, code: int, *, where: str) -> None:
        super().__init__(f"{where}: {code}")
        self.code = code


class RaisesOddly(Numbers):
    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        raise NoMessage(i, where="here")


class RaisesStop(Numbers):
    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        raise StopIteration


class BrokenConstructor(Numbers):
    """Fails to build in a worker, and not in the process that built it first."""

    def __init__(self, how: str, pid: int) -> None:
        super().__init__(8)
        if os.getpid() != pid:
            if how == "raise":
                raise FileNotFoundError("/nowhere/data.bin")
            if how == "exit":
                raise SystemExit(3)
            os._exit(9)


class Once:
    """Does a thing once over all processes: the first to make the file does it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def first(self, name: str) -> bool:
        try:
            os.close(os.open(self.path / name, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class Dies(Numbers):
    """Ends its process when it first (or always) comes to sample `at`."""

    def __init__(self, n: int, at: int, how: str, folder: Path, *, always: bool = False) -> None:
        super().__init__(n)
        self.at = at
        self.how = how
        self.once = Once(folder)
        self.always = always

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        if i == self.at and (self.always or self.once.first("died")):
            if self.how == "exit":
                os.write(2, b"the last words of this worker\n")
                os._exit(7)
            os.kill(os.getpid(), getattr(signal, self.how))
            time.sleep(60)
        return super().__getitem__(i)


class BornLate(Numbers):
    """Its constructor waits for whoever has locked the file."""

    def __init__(self, n: int, file: Path) -> None:
        super().__init__(n)
        with file.open() as locked:
            fcntl.flock(locked, fcntl.LOCK_SH)


class Hangs(Numbers):
    """Never gives sample `at`, the first time or always."""

    def __init__(self, n: int, at: int, folder: Path, *, always: bool = False) -> None:
        super().__init__(n)
        self.at = at
        self.once = Once(folder)
        self.always = always

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        if i == self.at and (self.always or self.once.first("hung")):
            self.wait_for_a_lock_that_is_never_released()
        return super().__getitem__(i)

    def wait_for_a_lock_that_is_never_released(self) -> None:
        time.sleep(600)


class Weighed(Numbers):
    """Samples say how many weights the data set was given."""

    nb_weights = 0

    def weigh(self, weights: list[int]) -> None:
        self.nb_weights = len(weights)

    def __getitem__(self, i: int) -> int:  # type: ignore[override]
        return self.nb_weights


class BornOnce(Numbers):
    """Only the first is built; it ends its process at sample 9, and the next is never built."""

    def __init__(self, n: int, folder: Path) -> None:
        super().__init__(n)
        if not Once(folder).first("born"):
            self.wait_in_the_constructor()

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        if i == 9:
            os._exit(7)
        return super().__getitem__(i)

    def wait_in_the_constructor(self) -> None:
        time.sleep(1000)


class Slow(Numbers):
    def __init__(self, n: int, delay_s: float) -> None:
        super().__init__(n)
        self.delay_s = delay_s

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.delay_s)
        return super().__getitem__(i)


class Shapes(Numbers):
    """Samples of different lengths: default collate can't stack them."""

    def __getitem__(self, i: int) -> dict[str, Any]:  # type: ignore[override]
        return {"image": torch.zeros(3, 4 + i % 2), "label": i}


class Big(Numbers):
    """Samples of `nbytes` each; batches of other sizes follow each other if `vary`."""

    def __init__(self, n: int, nbytes: int, *, vary: bool = False) -> None:
        super().__init__(n)
        self.nbytes = nbytes
        self.vary = vary

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        size = self.nbytes // (1 + i % 5) if self.vary else self.nbytes
        return torch.full((size,), i % 251, dtype=torch.uint8), i


Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Record:
    name: str
    values: torch.Tensor
    extra: None = None


class Mixed(Numbers):
    """One of every kind that a sample is made of."""

    def __getitem__(self, i: int) -> dict[str, Any]:  # type: ignore[override]
        return {
            "tensor": torch.arange(3) + i,
            "array": np.arange(4, dtype=np.float32) * i,
            "int": i,
            "float": i / 2,
            "bool": i % 2 == 0,
            "str": f"sample {i}",
            "bytes": bytes([i % 256]),
            "none": None,
            "list": [i, torch.tensor(i)],
            "pair": Pair(i, np.float64(i)),
            "record": Record(f"r{i}", torch.ones(2) * i),
            "bfloat16": torch.tensor([i], dtype=torch.bfloat16),
            "complex": torch.tensor(complex(i, -i)),
            "empty": torch.empty(0),
        }


class ManyAtOnce(Numbers):
    """Has `__getitems__`; `__getitem__` must not be called."""

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        raise AssertionError("__getitem__ was called")

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, int]]:
        return [Numbers.__getitem__(self, i) for i in indices]


class OnMeta(Numbers):
    """Samples on a device that workers must not use."""

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.empty(2, device="meta"), i


class RunsAsync(Numbers):
    """Runs an event loop of its own for each sample."""

    def __getitem__(self, i: int) -> torch.Tensor:
        async def sample() -> torch.Tensor:
            return torch.tensor(i, device="cpu")

        return asyncio.run(sample())


class Birth:
    """Each sample tells how its worker was born."""

    at_init: dict[str, Any] | None = None

    def __init__(self, n: int) -> None:
        self.n = n
        info = get_worker_info()
        self.drawn = (random.random(), float(np.random.rand()), float(torch.rand(1)))
        self.built_before_worker_info = info is None or info.dataset is not self

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> str:
        return json.dumps({**self.facts(), "at_init": self.at_init, "drawn": self.drawn})

    def facts(self) -> dict[str, Any]:
        """What a data set can see of its worker."""
        info = get_worker_info()
        if info is None:
            return {}
        signals = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGHUP)
        return {
            "id": info.id,
            "num_workers": info.num_workers,
            "seed": info.seed,
            "initial_seed": torch.initial_seed(),
            "own": info.dataset is self,
            "environment": os.environ.get("SWIFT_LOADER_TEST"),
            "cpus": sorted(os.sched_getaffinity(0)),
            "threads": torch.get_num_threads(),
            "dtype": str(torch.get_default_dtype()),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "warnings": warnings.filters[0][0],
            "level": logging.getLogger("of.tests").level,
            "handled": [callable(signal.getsignal(number)) for number in signals],
            "pid": os.getpid(),
        }

    @staticmethod
    def init(worker: int) -> None:
        """A `worker_init_fn`, which uses the data set as torch's documentation shows."""
        info = get_worker_info()
        assert info is not None
        info.dataset.at_init = {**info.dataset.facts(), "argument": worker}
