"""The README's example runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_example_runs() -> None:
    source = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)[0]
    assert len(source.splitlines()) <= 12
    namespace: dict[str, Any] = {}
    exec(compile(source, "README.md", "exec"), namespace)
    assert len(namespace["labels"])
    assert namespace["features"].shape[1:] == (16,)
