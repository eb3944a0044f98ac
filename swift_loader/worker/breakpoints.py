"""``breakpoint()`` in a worker, which has no terminal: an error says where it works."""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = ["explain_breakpoints"]


def explain_breakpoints() -> None:
    """Let ``breakpoint()`` raise, but where the user has chosen a debugger of their own."""
    if "PYTHONBREAKPOINT" not in os.environ and sys.breakpointhook is sys.__breakpointhook__:
        sys.breakpointhook = _explain


def _explain(*arguments: Any, **options: Any) -> None:
    raise RuntimeError(
        "breakpoint() in a worker, which has no terminal. Give worker_per_consumer=0 "
        "(num_workers=0): the training process makes the same batches with the same draws, and "
        "breakpoint() works there. Or let PYTHONBREAKPOINT name a debugger that needs no terminal"
    )
