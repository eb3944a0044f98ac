"""A bar for an epoch, by tqdm: in terminals and in notebooks."""

from __future__ import annotations

import importlib.util
from typing import Any

from swift_loader.errors import refuse
from swift_loader.loader.checks import flag
from swift_loader.telemetry.metrics import Meter

__all__ = ["Bar", "bar_wanted", "check_tqdm"]


def bar_wanted(name: str, value: Any) -> bool:
    """The option `progress`: True or False, and what it needs is there."""
    if flag(name, value):
        check_tqdm(name)
    return bool(value)


def check_tqdm(name: str) -> None:
    """Raise `ConfigError` where there is no tqdm."""
    if importlib.util.find_spec("tqdm") is None:
        refuse(name, True, "it needs a package: pip install 'swift-loader[console]'")


class Bar:
    """Batches that came, their rate, what is left of the epoch, and how long training waited."""

    def __init__(self, meter: Meter, nb_batches: int | None, given: dict[str, Any]) -> None:
        from tqdm.auto import tqdm

        epoch = "" if meter.epoch is None else f"epoch {meter.epoch}"
        self._meter = meter
        self._began = meter.totals()
        make: Any = tqdm
        self._bar = make(**{"total": nb_batches, "unit": "batch", "desc": epoch, **given})

    def step(self) -> None:
        """One batch more. The bar is drawn ten times a second at most."""
        if self._bar.update(1):
            since = self._meter.totals().since(self._began)
            self._bar.set_postfix_str(f"waited {since.wait_share:.0%}", refresh=False)

    def close(self) -> None:
        """It stays as it is. Twice is fine."""
        self._bar.close()
