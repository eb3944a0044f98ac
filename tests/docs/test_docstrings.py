"""Every name that users import has a docstring, and all docstrings are of one style.

The style: sentences in Markdown, and numpy's sections (`Parameters` underlined with dashes) where
there is more to say. The reference is made of them.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator

import pytest

from tests.docs.blocks import ROOT

PUBLIC = (
    "swift_loader",
    "swift_loader.cache",
    "swift_loader.dataloader2",
    "swift_loader.dataloader2.iter",
    "swift_loader.dataloader2.map",
    "swift_loader.errors",
    "swift_loader.integrations.accelerate",
    "swift_loader.integrations.fabric",
    "swift_loader.integrations.lightning",
    "swift_loader.integrations.lightning_metrics",
    "swift_loader.remote",
    "swift_loader.rpcdataloader",
    "swift_loader.sharing",
    "swift_loader.sources.readers.archives",
    "swift_loader.sources.readers.chunks",
    "swift_loader.sources.readers.columns",
    "swift_loader.sources.readers.hugging_face",
    "swift_loader.sources.readers.lines",
    "swift_loader.telemetry.ranks",
    "swift_loader.telemetry.stats",
)
_OTHER_STYLES = re.compile(
    r":(class|func|meth|mod|attr|exc|param|returns?|raises):`?"  # Sphinx
    r"|^\s*(Args|Arguments|Parameters|Returns|Raises|Yields|Attributes):$"  # Google
    r"|^\s*(\S.*)?::$",  # a literal block of reStructuredText
    re.MULTILINE,
)


def names_of(module: str) -> Iterator[tuple[str, object]]:
    """Classes and functions of ours that the module gives, and their public methods."""
    for name in importlib.import_module(module).__all__:
        value = getattr(importlib.import_module(module), name)
        if not (inspect.isclass(value) or inspect.isroutine(value)):
            continue
        if not value.__module__.startswith("swift_loader"):
            continue  # torch's own
        yield name, value
        if inspect.isclass(value):
            ours = (kind for kind in value.__mro__ if kind.__module__.startswith("swift_loader"))
            for member in {member for kind in ours for member in vars(kind)}:
                found = inspect.getattr_static(value, member)
                described = isinstance(found, (property, classmethod, staticmethod))
                if not member.startswith("_") and (described or inspect.isfunction(found)):
                    yield f"{name}.{member}", getattr(value, member)


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_has_a_docstring(module: str) -> None:
    bare = []
    for name, value in names_of(module):
        text = value.__dict__.get("__doc__") if inspect.isclass(value) else inspect.getdoc(value)
        if not text:
            bare.append(name)
    assert not bare


def test_docstrings_are_of_one_style() -> None:
    odd = []
    for path in sorted((ROOT / "swift_loader").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                found = _OTHER_STYLES.search(ast.get_docstring(node) or "")
                if found:
                    name = getattr(node, "name", "the module")
                    odd.append(f"{path.relative_to(ROOT)}, {name}: {found[0].strip()!r}")
    assert not odd
