"""The recorded rates beside the peers' as an SVG, for the README and the documentation. Pure.

`RESULTS.md` holds the figures: the table whose head begins with ``| batches/s |``. The picture has
no figures of its own, and a test compares it with the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.contestants import OURS

__all__ = ["DARK", "LIGHT", "PANELS", "Palette", "draw", "recorded_rates"]

# Workload of the table, and its title in the picture.
PANELS = {
    "image-u8": "64 images, uint8 (9.6 MB)",
    "image-f32": "64 images, float32 (38.5 MB)",
    "tokens": "32 pairs of 2048 tokens (1 MB)",
    "tabular": "256 rows of 16 numbers",
    "many": "16 samples of 64 small tensors",
    "jpeg": "64 JPEG files, decoded",
}
# Name in the picture, and the rows of the table of which it shows the quickest.
_LOADERS: dict[str, tuple[str, ...]] = {
    "swift_loader": (OURS,),
    "SPDL (best of 3 modes)": ("SPDL, threads", "SPDL, subprocess", "SPDL, processes"),
    "grain": ("grain",),
    "StatefulDataLoader": ("StatefulDataLoader",),
    "torch DataLoader": ("torch DataLoader",),
}
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
_WIDTH, _NAME, _BAR, _ROW, _HEAD = 400, 158, 180, 22, 34  # of a panel, in pixels
_PANEL_HEIGHT = _HEAD + _ROW * len(_LOADERS) + 18


@dataclass(frozen=True)
class Palette:
    """Colours of one picture."""

    text: str
    faint: str
    ours: str
    others: str


LIGHT = Palette(text="#1f2328", faint="#59636e", ours="#3f51b5", others="#b9c0cc")
DARK = Palette(text="#e6edf3", faint="#9198a1", ours="#8c9eff", others="#4b5361")


def recorded_rates(results: str) -> dict[str, dict[str, float]]:
    """Batches a second by workload and loader, out of the text of `RESULTS.md`."""
    lines = iter(results.splitlines())
    head = next(line for line in lines if line.startswith("| batches/s |"))
    workloads = _cells(head)[1:]
    next(lines)  # the rule below the head
    rates: dict[str, dict[str, float]] = {workload: {} for workload in workloads}
    for line in lines:
        if not line.startswith("|"):
            break
        name, *cells = _cells(line)
        for workload, cell in zip(workloads, cells, strict=True):
            if cell:
                rates[workload][name] = float(cell.replace(",", ""))
    return rates


def draw(rates: Mapping[str, Mapping[str, float]], palette: Palette, columns: int) -> str:
    """Panels in so many columns; in each, bars as long as the rate over the panel's highest."""
    rows = -(-len(PANELS) // columns)
    width, height = columns * _WIDTH, rows * _PANEL_HEIGHT
    told = "Batches a second of swift_loader and other loaders; longer bars are better"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="{_FONT}" font-size="14" role="img">',
        f"<title>{told}</title>",
    ]
    for number, (workload, title) in enumerate(PANELS.items()):
        x, y = number % columns * _WIDTH, number // columns * _PANEL_HEIGHT
        parts += _panel(title, rates[workload], palette, x, y)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(
    title: str, rates: Mapping[str, float], palette: Palette, x: int, y: int
) -> Sequence[str]:
    shown = {
        name: max(rates[row] for row in rows if row in rates) for name, rows in _LOADERS.items()
    }
    top = max(shown.values())
    parts = [
        f'<text x="{x + 8}" y="{y + 20}" font-weight="600" fill="{palette.text}">'
        f'{escape(title)} <tspan font-weight="400" fill="{palette.faint}">batches/s</tspan></text>'
    ]
    for number, (name, rate) in enumerate(shown.items()):
        ours = number == 0
        line = y + _HEAD + number * _ROW
        length = max(2.0, _BAR * rate / top)
        weight = ' font-weight="600"' if ours else ""
        parts += [
            f'<text x="{x + _NAME}" y="{line + 14}" text-anchor="end"{weight} '
            f'fill="{palette.text}" font-size="13">{escape(name)}</text>',
            f'<rect x="{x + _NAME + 8}" y="{line + 2}" width="{length:.1f}" height="16" rx="2" '
            f'fill="{palette.ours if ours else palette.others}"/>',
            f'<text x="{x + _NAME + 14 + length:.1f}" y="{line + 14}"{weight} '
            f'fill="{palette.text}" font-size="13">{rate:,.0f}</text>',
        ]
    return parts


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
