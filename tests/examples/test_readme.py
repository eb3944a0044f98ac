"""The README's example runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

README = (Path(__file__).parents[2] / "README.md").read_text()


class Images:
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3, 4, 4), index), index


def test_example_runs() -> None:
    source = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)[0]
    assert len(source.splitlines()) <= 12
    on_cpu = source.replace('torch.device("cuda", rank)', 'torch.device("cpu")')
    namespace: dict[str, Any] = {"Images": Images, "rank": 0}
    exec(compile(on_cpu, "README.md", "exec"), namespace)
    assert len(namespace["labels"])
    assert namespace["images"].shape[1:] == (3, 4, 4)
