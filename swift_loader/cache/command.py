"""``swift-loader cache``: what lies in a folder of caches, whether it is sound, and removing it."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from swift_loader.cache.files import (
    Record,
    checksum,
    data_path,
    open_private,
    private_folder,
    read_index,
)
from swift_loader.errors import ConfigError
from swift_loader.telemetry.units import format_bytes

__all__ = ["cache"]


def cache(arguments: Sequence[str]) -> int:
    """Run ``ls``, ``rm`` or ``verify``; returns the exit status: 1 where something is damaged."""
    parser = argparse.ArgumentParser(
        prog="swift-loader cache", description="The files of SwiftLoader(cache=Cache(disk=...))."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, about in (
        ("ls", "list the data sets that are kept in a folder"),
        ("rm", "remove one of them; without a name, all"),
        ("verify", "compare the checksum of every sample"),
    ):
        command = commands.add_parser(name, help=about, description=about)
        command.add_argument("disk", type=Path, help="the folder given as disk")
        if name != "ls":
            command.add_argument("name", nargs="?", help="as ls shows it; default: all")
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except OSError as error:
        raise ConfigError(str(error)) from error


def _run(options: argparse.Namespace) -> int:
    folders = list(_folders(options.disk, getattr(options, "name", None)))
    if options.command == "ls":
        for folder in folders:
            _say(_line(folder))
        return 0
    if options.command == "rm":
        for folder in folders:
            _remove(folder)
            _say(f"removed {folder.name}")
        return 0
    damaged = 0
    for folder in folders:
        records, _ = read_index(folder)
        bad = [record.key for record in records if not _is_sound(folder, record)]
        damaged += len(bad)
        shown = f", damaged: {', '.join(map(str, bad[:20]))}" if bad else ""
        _say(f"{folder.name}: {len(records):,} samples{shown}")
    return 1 if damaged else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _folders(disk: Path, name: str | None) -> Iterator[Path]:
    """Folders of this user's. Raises `ConfigError` where there is none, or none of that name."""
    if not disk.is_dir():
        raise ConfigError(f"{disk} is no folder: give the one that was given as disk")
    own = f"{os.geteuid()}-"
    found = [
        folder
        for folder in sorted(disk.iterdir())
        if folder.name.startswith(own) and (folder / "lock").exists()
    ]
    if name is not None:
        found = [folder for folder in found if folder.name == name]
        if not found:
            raise ConfigError(f"there is no {name} in {disk}; `swift-loader cache ls {disk}` lists")
    for folder in found:
        private_folder(folder)
        yield folder


def _line(folder: Path) -> str:
    records, _ = read_index(folder)
    nbytes = sum(record.numbers + record.skeleton for record in records)
    about = _about(folder)
    used = ", in use" if _in_use(folder) else ""
    return (
        f"{folder.name}  {about.get('dataset', '?')} of {about.get('samples', '?')}, key "
        f"{about.get('key')!r}: {len(records):,} samples, {format_bytes(nbytes)}{used}"
    )


def _about(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "about.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _in_use(folder: Path) -> bool:
    fd = open_private(folder / "lock", os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _remove(folder: Path) -> None:
    if _in_use(folder):
        raise ConfigError(f"{folder.name} is in use by a run: end that first")
    # The index first: whatever stops this, nothing that is left tells of bytes that are gone.
    own = (folder / "index", *sorted(folder.glob("data-*")), folder / "about.json")
    others = {*folder.iterdir()} - {*own, folder / "lock"}
    if others:
        names = ", ".join(sorted(path.name for path in others))
        raise ConfigError(f"{folder} holds what is not the cache's: {names}. Move it away first")
    for path in own:
        path.unlink(missing_ok=True)
    (folder / "lock").unlink()
    folder.rmdir()


def _is_sound(folder: Path, record: Record) -> bool:
    try:
        fd = open_private(data_path(folder, record.segment), os.O_RDONLY)
    except OSError:
        return False
    try:
        data = os.pread(fd, record.numbers + record.skeleton, record.offset)
    finally:
        os.close(fd)
    return checksum(data) == record.check
