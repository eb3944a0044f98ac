"""The control groups that this process is in: a container, a batch job, a slice of a system.

Version 2 of the interface, one hierarchy for all, and version 1 where that is mounted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["MEMBERSHIP", "MOUNTED", "group_folders", "read_text"]

MEMBERSHIP = Path("/proc/self/cgroup")
MOUNTED = Path("/sys/fs/cgroup")


def group_folders(controller: str, membership: Path, mounted: Path) -> Iterator[Path]:
    """Folders of the group that `controller` counts in, and of those around it, innermost first.

    In a container the inner ones may be the host's and not be there; the root always is.
    """
    for line in (read_text(membership) or "").splitlines():
        _, controllers, inside = line.split(":", 2)
        if controllers == "" or controller in controllers.split(","):
            root = mounted / controller if controllers else mounted
            folder = root / inside.lstrip("/")
            yield from (path for path in (folder, *folder.parents) if path.is_relative_to(root))


def read_text(path: Path) -> str | None:
    """None where it can't be read."""
    try:
        return path.read_text()
    except OSError:
        return None
