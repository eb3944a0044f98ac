"""What the outer folders use of the floors below them: public names, of these modules only.

A module that is not in `DOORS` is its floor's own business, and may change without a look at
anybody outside. Whoever needs another one adds it here, knowingly.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import swift_loader

EDGES = ("bench", "dataloader2", "doctor", "integrations", "rpcdataloader", "sharing", "top")

DOORS = {
    "errors": "",
    "version": "",
    "plan": "",
    "batch": "arena codec collate seeding shipping tree",
    "order": "counted order part",
    "telemetry": "figures printable sinks.addresses sinks.pump sinks.sink stats units verdict",
    "transport": "channel memory messages peer slots table wakeup written_slots",
    "worker": "birth cgroups cpus faults launch maker place process progress recipe zygote",
    "pipeline": "answers elsewhere item link local reader shell supervision",
    "ranks": "agreement exchange",
    "report": "groups runs",
    "loader": "delivering engine epoch given handing_on last_step loader",
    "remote": "address binding client commands endpoint keys source status",
}

ROOT = Path(swift_loader.__file__).parent


def _imports(path: Path) -> Iterator[tuple[str, str]]:
    """``(module, name)`` of every import from this package; modules without ``swift_loader.``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("swift_loader."):
            for alias in node.names:
                yield (node.module or "").removeprefix("swift_loader."), alias.name


def _public_names(module: str) -> set[str]:
    return set(importlib.import_module(f"swift_loader.{module}").__all__)


@pytest.mark.parametrize("edge", EDGES)
def test_outer_folders_use_only_public_names_of_listed_modules(edge: str) -> None:
    found = []
    for path in sorted((ROOT / edge).rglob("*.py")):
        for module, name in _imports(path):
            if module.split(".")[0] == edge:
                continue
            where = f"{path.relative_to(ROOT)} uses {module}.{name}"
            floor, _, inner = module.partition(".")
            if inner not in DOORS[floor].split() and inner:
                found.append(f"{where}: the module is not in DOORS")
            elif name not in _public_names(module):
                found.append(f"{where}: the name is not in its module's __all__")
    assert not found, "\n".join(found)
