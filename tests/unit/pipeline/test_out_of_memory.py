"""What is said of a worker that the kernel killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from swift_loader.pipeline.out_of_memory import CgroupMemory, cgroup_memory, why_killed

GIB = 1 << 30


def group(folder: Path, limit: str, used: int, killed: int) -> None:
    """A group's folder as version 2 shows it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.events").write_text(f"low 0\nhigh 0\nmax 7\noom 3\noom_kill {killed}\n")


def seen(tmp_path: Path, membership: str) -> CgroupMemory | None:
    path = tmp_path / "cgroup"
    path.write_text(membership)
    return cgroup_memory(path, tmp_path / "mounted")


def test_limit_of_the_own_group(tmp_path: Path) -> None:
    group(tmp_path / "mounted" / "a" / "b", str(2 * GIB), GIB, 4)
    assert seen(tmp_path, "0::/a/b\n") == CgroupMemory(2 * GIB, GIB, 4)


def test_limit_of_a_group_around_it(tmp_path: Path) -> None:
    group(tmp_path / "mounted" / "a" / "b", "max", 5, 1)
    group(tmp_path / "mounted" / "a", str(GIB), 6, 2)
    group(tmp_path / "mounted", "max", 7, 3)
    assert seen(tmp_path, "0::/a/b\n") == CgroupMemory(GIB, 6, 2)


def test_group_without_a_limit_counts_still(tmp_path: Path) -> None:
    group(tmp_path / "mounted" / "a", "max", 5, 1)
    assert seen(tmp_path, "0::/a\n") == CgroupMemory(None, 5, 1)


def test_path_of_another_namespace_is_looked_for_at_the_root(tmp_path: Path) -> None:
    group(tmp_path / "mounted", str(GIB), 5, 1)
    assert seen(tmp_path, "0::/of/the/host\n") == CgroupMemory(GIB, 5, 1)


@pytest.mark.parametrize("limit", [GIB, 0x7FFFFFFFFFFFF000])
def test_version_one(limit: int, tmp_path: Path) -> None:
    folder = tmp_path / "mounted" / "memory" / "job"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.usage_in_bytes").write_text("77\n")
    (folder / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    membership = "11:cpu:/job\n10:memory:/job\n0::/\n"
    known = GIB if limit == GIB else None
    assert seen(tmp_path, membership) == CgroupMemory(known, 77, 5)


def test_nothing_to_read_is_nothing_known(tmp_path: Path) -> None:
    assert seen(tmp_path, "0::/\n") is None
    assert cgroup_memory(tmp_path / "missing", tmp_path) is None
    group(tmp_path / "mounted", "nonsense", 5, 1)
    assert seen(tmp_path, "0::/\n") is None


def test_the_cause_is_certain_only_where_the_kernel_counted_it() -> None:
    full = CgroupMemory(2 * GIB, 2 * GIB, 4)
    assert "if nobody killed it by hand" in why_killed(GIB, 4, full)
    assert "if nobody killed it by hand" in why_killed(GIB, 0, None)
    story = why_killed(3 * GIB // 2, 3, full)
    assert "the kernel has killed for want of memory" in story
    assert "peak was 1.50 GiB" in story
    assert "2.00 GiB of the cgroup's 2.00 GiB are used" in story
    assert "data_queue_size" in story
