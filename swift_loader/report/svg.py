"""Plots over time: a drawing in inline SVG, labels and marks in HTML around it. Pure.

The drawing is stretched to the place that there is, and text is not: so labels are as legible on a
phone as on a wide screen, and the page zooms by giving the same drawing more room.

Colours are CSS variables of the page (``--c-wait``, ...), so that light and dark need one picture.
Each step has a title that a pointer or a screen reader finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

__all__ = ["Mark", "Plot", "Series", "Step", "nice_top", "plot", "ticks", "value_text"]

WIDTH, HEIGHT = 1000, 100  # of the drawing, in its own units
_NOTHING = 1e-9  # an axis is never shorter than this
_COARSE, _FINE = 4, 32  # labels on the time axis: always, and when zoomed in


@dataclass(frozen=True)
class Step:
    """One interval on the time axis, and what is said about it."""

    from_s: float
    to_s: float
    title: str


@dataclass(frozen=True)
class Series:
    """One value a step (None: nothing is drawn there). `color` is the name of a CSS variable.

    `steps`: its own, where series of several runs lie over one another.
    """

    name: str
    color: str
    values: Sequence[float | None]
    steps: Sequence[Step] | None = None


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
    """The plot as HTML. `identity` must be unique on the page."""
    inner = "".join(
        (
            _grid(picture),
            _stack(picture) if picture.stacked else _lines(picture),
            _limit(picture),
            _titles(picture),
        )
    )
    return (
        f'<div class="plot"><svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" '
        f'role="img" aria-labelledby="{identity}-t {identity}-d">'
        f'<title id="{identity}-t">{escape(picture.title)}</title>'
        f'<desc id="{identity}-d">{escape(picture.description)}</desc>{inner}</svg>'
        f"{_marks(picture)}{_labels(picture)}</div>"
    )


def _x(picture: Plot, at_s: float) -> float:
    return WIDTH * min(1.0, max(0.0, at_s / picture.end_s)) if picture.end_s > 0 else 0.0


def _y(picture: Plot, value: float) -> float:
    return HEIGHT * (1 - min(1.0, max(0.0, value / picture.top)))


def _grid(picture: Plot) -> str:
    heights = [_y(picture, value) for value in ticks(picture.top, 2)]
    return "".join(
        f'<line class="grid" x1="0" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>' for y in heights
    )


def _labels(picture: Plot) -> str:
    out = ['<div class="ys">']
    for value in ticks(picture.top, 2):
        text = escape(value_text(value, picture.unit))
        out.append(f'<span style="bottom:{100 - _y(picture, value):.1f}%">{text}</span>')
    out.append('</div><div class="xs">')
    scale, unit = _time_unit(picture.end_s)
    coarse = ticks(picture.end_s / scale, _COARSE)
    fine = ticks(picture.end_s / scale, _FINE)
    for value in sorted({*coarse, *fine}):
        left = _x(picture, value * scale) / WIDTH
        is_coarse = any(abs(value - each) < _NOTHING + 1e-6 * value for each in coarse)
        at_end = left > 0.8  # there it would hang over the edge
        kind = ("" if is_coarse else "fine ") + ("end" if at_end else "")
        place = f"right:{1 - left:.2%}" if at_end else f"left:{left:.2%}"
        out.append(f'<span class="{kind}" style="{place}">{value:g} {unit}</span>')
    out.append("</div>")
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
            path.append(f"M{x0:.2f} {y0:.1f}V{y1:.1f}H{x1:.2f}V{y0:.1f}Z")
        out.append(f'<path d="{"".join(path)}" style="fill:var({series.color})"/>')
    return "".join(out)


def _lines(picture: Plot) -> str:
    out = []
    for series in picture.series:
        path = []
        pen_at: float | None = None
        steps = picture.steps if series.steps is None else series.steps
        for step, value in zip(steps, series.values, strict=True):
            if value is None:
                pen_at = None
                continue
            x0, x1, y = _x(picture, step.from_s), _x(picture, step.to_s), _y(picture, value)
            path.append(f"V{y:.1f}H{x1:.2f}" if pen_at == x0 else f"M{x0:.2f} {y:.1f}H{x1:.2f}")
            pen_at = x1
        out.append(f'<path class="line" d="{"".join(path)}" style="stroke:var({series.color})"/>')
    return "".join(out)


def _limit(picture: Plot) -> str:
    if picture.limit is None or picture.limit > picture.top:
        return ""
    y = _y(picture, picture.limit)
    return f'<line class="limit" x1="0" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _marks(picture: Plot) -> str:
    return "".join(
        f'<i class="mark {escape(mark.kind)}" title="{escape(mark.title)}" '
        f'style="left:{_x(picture, mark.at_s) / WIDTH:.2%};background:var({mark.color})"></i>'
        for mark in picture.marks
    )


def _titles(picture: Plot) -> str:
    out = []
    for step in picture.steps:
        x0, x1 = _x(picture, step.from_s), _x(picture, step.to_s)
        out.append(
            f'<rect class="hit" x="{x0:.2f}" y="0" width="{max(0.1, x1 - x0):.2f}" '
            f'height="{HEIGHT}"><title>{escape(step.title)}</title></rect>'
        )
    return "".join(out)


def value_text(value: float, unit: str) -> str:
    """A number with its unit: ``25%``, ``1.5 GB``, ``1,200``."""
    if unit == "%":
        return f"{value:.0%}"
    for scale, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale * (1 if unit == "B" else 10):
            return f"{value / scale:.3g} {letter}{unit if unit == 'B' else ''}".strip()
    return f"{value:.3g}" + (" B" if unit == "B" else "") if value < 1000 else f"{value:,.0f}"


def _time_unit(end_s: float) -> tuple[float, str]:
    if end_s <= 180:
        return 1.0, "s"
    return (60.0, "min") if end_s <= 10800 else (3600.0, "h")
