"""Which store a loader uses: its bounds, and the name by which processes find the same one.

Processes meet at one store when they have the same user, the same fingerprint of the data set
(class, arguments, length) and the same `key`; without a key, when they belong to one run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b

__all__ = ["StoreName", "run_of"]

#: what launchers set, the same for all ranks of a run and different for the next one
_RUN_VARIABLES = (
    ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"),
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ("MASTER_ADDR", "MASTER_PORT"),
)


@dataclass(frozen=True)
class StoreName:
    """Travels to the workers. `memory` and `disk_size` in bytes; `disk` is a folder.

    `run` says who shares a store without files: see `run_of`, or the user's `key`.
    `samples`: whether ``dataset[i]`` is kept, and not only what the data set keeps by hand.
    """

    memory: int
    disk: str | None
    disk_size: int | None
    key: str | None
    run: str
    fingerprint: str
    dataset_name: str
    samples: bool = True
    nb_samples: int = -1  # -1: not known yet

    def of_length(self, nb_samples: int | None) -> StoreName:
        """The same, of a data set with so many samples; None for a stream."""
        return replace(self, nb_samples=-2 if nb_samples is None else nb_samples)

    @property
    def imprint(self) -> str:
        """The fingerprint with the length: 32 hexadecimal digits."""
        text = f"{self.fingerprint} {self.nb_samples} {self.samples}"
        return blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def address(self) -> str:
        """Names the store among all of this host."""
        text = "\0".join((self.imprint, self.run, str(self.disk)))
        digest = blake2b(text.encode(), digest_size=12).hexdigest()
        return f"swift_loader-cache-{os.geteuid()}-{digest}"


def run_of(environ: Mapping[str, str], nb_consumer: int) -> str:
    """What the ranks of a run have in common.

    A launcher's variables where there are some; else several ranks share the session that they were
    started in (a terminal, a batch job), and a single one is alone.
    """
    for names in _RUN_VARIABLES:
        values = [environ.get(name, "") for name in names]
        if all(values):
            return " ".join((names[0], *values))
    if nb_consumer > 1:
        return f"session {os.getsid(0)}"
    return f"process {os.getpid()} {_start_of_process()}"


def _start_of_process() -> str:
    """Tells this process from others that had its number."""
    try:
        with open("/proc/self/stat") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return ""
