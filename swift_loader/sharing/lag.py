"""How long the others wait for a consumer that takes nothing: a warning, then it is dropped."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

import loguru

from swift_loader.sharing.member import Member

__all__ = ["Lag"]


class Lag:
    """Drops consumers that others have waited for during `timeout_s`; warns at half of it."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._logger = loguru.logger.bind(swift_loader="producer")

    def check(self, members: Iterable[Member]) -> float | None:
        """These hold the others up now. Gives the seconds until the next check; None: never."""
        now_s = time.monotonic()
        timeout_s = self._timeout_s
        next_s = math.inf
        for member in members:
            if member.full_since_s is None:
                member.full_since_s = now_s
            waited_s = now_s - member.full_since_s
            if waited_s >= timeout_s:
                self._logger.warning(
                    "consumer {} took nothing for {:.3g} s and is dropped", member.name, waited_s
                )
                member.drop(
                    f"it took no batch for {waited_s:.3g} s while the others waited "
                    f"(lag_timeout={timeout_s:g}); join again with a new TensorConsumer"
                )
                return 0.0
            if waited_s >= timeout_s / 2 and not member.warned:
                member.warned = True
                self._logger.warning(
                    "consumer {} holds the others up, for {:.3g} s now; it is dropped after {:g} s",
                    member.name,
                    waited_s,
                    timeout_s,
                )
            next_s = min(next_s, (timeout_s if member.warned else timeout_s / 2) - waited_s)
        return None if next_s == math.inf else next_s
