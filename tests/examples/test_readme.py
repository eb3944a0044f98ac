"""The README's example runs, and its table names every option with the default that it has."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import torch

from swift_loader import SwiftLoader

README = (Path(__file__).parents[2] / "README.md").read_text()


class Images:
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3, 4, 4), index), index


def options_in_readme() -> dict[str, str]:
    """Option -> what stands in the column of defaults."""
    table = README.split("## All options")[1].split("| call |")[0]
    found = {}
    for line in table.splitlines():
        if line.startswith("| `"):
            names, default, _ = line.strip("| ").split(" | ", 2)
            found.update(dict.fromkeys(re.findall(r"`(\w+)`", names), default))
    return found


def literal(cell: str) -> tuple[Any] | None:
    """The value, where the cell holds one and not words."""
    try:
        return (ast.literal_eval(cell.strip("`")),) if cell.startswith("`") else None
    except (SyntaxError, ValueError):
        return None


def test_table_names_every_option_and_no_other() -> None:
    parameters = set(inspect.signature(SwiftLoader).parameters)
    assert set(options_in_readme()) == parameters - {"seed_number", "seed_numer"}


def test_table_gives_the_defaults_of_the_signature() -> None:
    parameters = inspect.signature(SwiftLoader).parameters
    wrong = {
        name: cell
        for name, cell in options_in_readme().items()
        if (value := literal(cell)) is not None and value != (parameters[name].default,)
    }
    assert not wrong


def test_example_runs() -> None:
    source = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)[0]
    assert len(source.splitlines()) <= 12
    on_cpu = source.replace('torch.device("cuda", rank)', 'torch.device("cpu")')
    namespace: dict[str, Any] = {"Images": Images, "rank": 0}
    exec(compile(on_cpu, "README.md", "exec"), namespace)
    assert len(namespace["labels"])
    assert namespace["images"].shape[1:] == (3, 4, 4)
