"""Plots over time as inline SVG: stacked shares and lines, a step an interval. Pure.

Colours are CSS variables of the page (``--c-wait``, ...), so that light and dark need one picture.
Each step has a title that a pointer or a screen reader finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

__all__ = ["Mark", "Plot", "Series", "Step", "nice_top", "plot", "ticks", "value_text"]

_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 16, 24
_NOTHING = 1e-9  # an axis is never shorter than this


@dataclass(frozen=True)
class Step:
    """One interval on the time axis, and what is said about it."""

    from_s: float
    to_s: float
    title: str


@dataclass(frozen=True)
class Series:
    """One value a step (None: nothing is drawn there). `color` is the name of a CSS variable."""

    name: str
    color: str
    values: Sequence[float | None]


@dataclass(frozen=True)
class Mark:
    """Something at one moment: a thin line (``kind="line"``) or a triangle on top of the plot."""

    at_s: float
    kind: str
    color: str
    title: str


@dataclass(frozen=True)
class Plot:
    """`stacked`: series are areas upon each other, cut off at `top`; else lines of their own.

    `unit`: ``"%"`` (values are shares of 1), ``"B"`` (bytes) or any word. `limit`: a dashed line
    at that value, as the number of CPUs. `end_s`, `top`: where both axes end.
    """

    title: str
    description: str
    steps: Sequence[Step]
    series: Sequence[Series]
    end_s: float
    top: float
    unit: str = ""
    stacked: bool = False
    limit: float | None = None
    marks: Sequence[Mark] = ()
    width: int = 1080
    height: int = 170


def ticks(top: float, about: int) -> list[float]:
    """Round numbers from 0 to `top`, about so many."""
    if top < _NOTHING:
        return [0.0]
    raw = top / max(1, about)
    scale: float = 10 ** floor(log10(raw))
    step = next(m * scale for m in (1, 2, 5, 10) if m * scale >= raw * 0.999)
    return [i * step for i in range(floor(top / step * 1.0001) + 1)]


def nice_top(values: Sequence[float]) -> float:
    """A round number that no value passes."""
    most = max(values, default=0.0)
    if most < _NOTHING:
        return 1.0
    step = ticks(most, 4)[1] if len(ticks(most, 4)) > 1 else most
    return step * ceil(most / step * 0.9999)


def plot(picture: Plot, identity: str) -> str:
    """The ``<svg>`` element. `identity` must be unique on the page."""
    inner = "".join(
        (
            _axes(picture),
            _stack(picture) if picture.stacked else _lines(picture),
            _limit(picture),
            _marks(picture),
            _titles(picture),
        )
    )
    return (
        f'<svg viewBox="0 0 {picture.width} {picture.height}" role="img" '
        f'aria-labelledby="{identity}-t {identity}-d">'
        f'<title id="{identity}-t">{escape(picture.title)}</title>'
        f'<desc id="{identity}-d">{escape(picture.description)}</desc>{inner}</svg>'
    )


def _x(picture: Plot, at_s: float) -> float:
    span = picture.width - _LEFT - _RIGHT
    return _LEFT + span * at_s / picture.end_s if picture.end_s > 0 else float(_LEFT)


def _y(picture: Plot, value: float) -> float:
    span = picture.height - _TOP - _BOTTOM
    return picture.height - _BOTTOM - span * min(1.0, max(0.0, value / picture.top))


def _axes(picture: Plot) -> str:
    out = []
    right = picture.width - _RIGHT
    for value in ticks(picture.top, 4):
        y = _y(picture, value)
        text = escape(value_text(value, picture.unit))
        out.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(
            f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
        )
    scale, unit = _time_unit(picture.end_s)
    for value in ticks(picture.end_s / scale, 8 if picture.width > 700 else 4):
        x = _x(picture, value * scale)
        label = f"{value:g} {unit}"
        anchor = "end" if x > right - 20 else "middle"
        y = picture.height - 6
        out.append(f'<text class="tick" x="{x:.1f}" y="{y}" text-anchor="{anchor}">{label}</text>')
    return "".join(out)


def _stack(picture: Plot) -> str:
    base = [0.0] * len(picture.steps)
    out = []
    for series in picture.series:
        path = []
        for i, (step, value) in enumerate(zip(picture.steps, series.values, strict=True)):
            if not value:
                continue
            below, base[i] = base[i], base[i] + value
            x0, x1 = _x(picture, step.from_s), _x(picture, step.to_s)
            y0, y1 = _y(picture, below), _y(picture, base[i])
            path.append(f"M{x0:.1f} {y0:.1f}V{y1:.1f}H{x1:.1f}V{y0:.1f}Z")
        out.append(f'<path d="{"".join(path)}" style="fill:var({series.color})"/>')
    return "".join(out)


def _lines(picture: Plot) -> str:
    out = []
    for series in picture.series:
        path = []
        pen_at: float | None = None
        for step, value in zip(picture.steps, series.values, strict=True):
            if value is None:
                pen_at = None
                continue
            x0, x1, y = _x(picture, step.from_s), _x(picture, step.to_s), _y(picture, value)
            path.append(f"V{y:.1f}H{x1:.1f}" if pen_at == x0 else f"M{x0:.1f} {y:.1f}H{x1:.1f}")
            pen_at = x1
        out.append(f'<path class="line" d="{"".join(path)}" style="stroke:var({series.color})"/>')
    return "".join(out)


def _limit(picture: Plot) -> str:
    if picture.limit is None or picture.limit > picture.top:
        return ""
    y = _y(picture, picture.limit)
    right = picture.width - _RIGHT
    return f'<line class="limit" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _marks(picture: Plot) -> str:
    out = []
    for mark in picture.marks:
        x = _x(picture, mark.at_s)
        title = f"<title>{escape(mark.title)}</title>"
        if mark.kind == "line":
            y = picture.height - _BOTTOM
            out.append(
                f'<line class="epoch" x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{y}">{title}</line>'
            )
        else:
            out.append(
                f'<path d="M{x - 5:.1f} 2H{x + 5:.1f}L{x:.1f} 13Z" '
                f'style="fill:var({mark.color})">{title}</path>'
            )
    return "".join(out)


def _titles(picture: Plot) -> str:
    height = picture.height - _TOP - _BOTTOM
    out = []
    for step in picture.steps:
        x0, x1 = _x(picture, step.from_s), _x(picture, step.to_s)
        out.append(
            f'<rect class="hit" x="{x0:.1f}" y="{_TOP}" width="{max(0.5, x1 - x0):.1f}" '
            f'height="{height}"><title>{escape(step.title)}</title></rect>'
        )
    return "".join(out)


def value_text(value: float, unit: str) -> str:
    """A number with its unit: ``25%``, ``1.5 GB``, ``1,200``."""
    if unit == "%":
        return f"{value:.0%}"
    for scale, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale * (1 if unit == "B" else 10):
            return f"{value / scale:.3g} {letter}{unit if unit == 'B' else ''}".strip()
    return f"{value:.3g}" + (" B" if unit == "B" else "") if value < 1e4 else f"{value:,.0f}"


def _time_unit(end_s: float) -> tuple[float, str]:
    if end_s <= 180:
        return 1.0, "s"
    return (60.0, "min") if end_s <= 10800 else (3600.0, "h")
