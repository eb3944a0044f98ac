"""One measured figure beside its bar: what every measurement hands back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from benchmarks.spread import Spread, ratios, short, spread


@dataclass(frozen=True)
class Figure:
    """`value` of `what`, in `unit`; with a `bar`, whether it is at least or at most that.

    `ours` and `theirs` are the absolute figures behind a ratio, for the reader only.
    """

    measurement: str
    what: str
    value: Spread
    unit: str = "x"
    bar: float | None = None
    bound: Literal["at least", "at most"] = "at most"
    ours: str = ""
    theirs: str = ""

    @property
    def is_met(self) -> bool | None:
        """Whether the median meets the bar; None without one."""
        if self.bar is None:
            return None
        if self.bound == "at least":
            return self.value.median >= self.bar
        return self.value.median <= self.bar

    def to_json(self) -> dict[str, Any]:
        """The figure as plain data."""
        return asdict(self) | {"is_met": self.is_met}

    @property
    def bar_text(self) -> str:
        return "" if self.bar is None else f"{self.bound} {short(self.bar)}"

    @property
    def met_text(self) -> str:
        return {None: "", True: "met", False: "NOT MET"}[self.is_met]


def over(
    measurement: str, what: str, ours: Sequence[float], theirs: Sequence[float], bar: float | None
) -> Figure:
    """Rates beside rates that were measured in turn: at least `bar` times as much."""
    return Figure(
        measurement,
        what,
        ratios(ours, theirs),
        bar=bar,
        bound="at least",
        ours=str(spread(ours)),
        theirs=str(spread(theirs)),
    )
