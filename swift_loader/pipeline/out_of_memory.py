"""Whether it was the lack of memory that killed a worker, and the figures to see it by.

The kernel tells nobody why it kills; but a control group (a container, a batch job) counts the
processes that it killed for want of memory, and has a limit of its own that is often far below what
the machine has.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from swift_loader.worker.cgroups import MEMBERSHIP, MOUNTED, group_folders

__all__ = ["CgroupMemory", "cgroup_memory", "why_killed"]

_NO_LIMIT_BYTES = 1 << 60  # version 1 says "none" by a number beyond all memory


@dataclass(frozen=True, slots=True)
class CgroupMemory:
    """What the control group says that this process (and so its workers) is in.

    `limit_bytes` is None where there is none. `nb_killed`: processes that the kernel killed in it
    for want of memory, ever.
    """

    limit_bytes: int | None
    used_bytes: int
    nb_killed: int


def cgroup_memory(membership: Path = MEMBERSHIP, mounted: Path = MOUNTED) -> CgroupMemory | None:
    """The innermost group with a limit, or else the innermost; None where nothing can be read."""
    folders = group_folders("memory", membership, mounted)
    found = [group for path in folders if (group := _read(path))]
    limited = [group for group in found if group.limit_bytes is not None]
    return next(iter(limited or found), None)


def why_killed(max_rss_bytes: int, nb_killed_before: int, group: CgroupMemory | None) -> str:
    """What to say of a worker that was killed by SIGKILL, after its peak of memory is known.

    `nb_killed_before`: the group's count when the worker was started.
    """
    if group is not None and group.nb_killed > nb_killed_before:
        why = "the kernel has killed for want of memory here since the worker started"
    else:
        why = "if nobody killed it by hand, the machine or its cgroup ran out of memory"
    figures = [f"the worker's peak was {_gib(max_rss_bytes)}"]
    with suppress(OSError):  # no descriptor is left to look with
        memory = psutil.virtual_memory()
        figures.append(
            f"{_gib(memory.available)} of the machine's {_gib(memory.total)} are available now"
        )
    if group is not None and group.limit_bytes is not None:
        figures.append(
            f"{_gib(group.used_bytes)} of the cgroup's {_gib(group.limit_bytes)} are used"
        )
    return (
        f"{why}: {', '.join(figures)}. "
        "Fewer workers, a smaller data_queue_size or smaller samples need less"
    )


def _read(folder: Path) -> CgroupMemory | None:
    for limit, used, killed in (
        ("memory.max", "memory.current", "memory.events"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control"),
    ):
        try:
            text = (folder / limit).read_text().strip()
            counts = dict(line.split() for line in (folder / killed).read_text().splitlines())
            most = None if text == "max" or int(text) >= _NO_LIMIT_BYTES else int(text)
            used_bytes = int((folder / used).read_text())
            return CgroupMemory(most, used_bytes, int(counts.get("oom_kill", 0)))
        except (OSError, ValueError):
            continue  # the other version, or none: there are only fewer figures to show
    return None


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB"
