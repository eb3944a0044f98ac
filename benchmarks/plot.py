"""The figures as pictures: of a run, beside its results, and of the record, for the README.

python -m benchmarks.plot    draws what RESULTS.md records into docs/images
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.bars import BARS
from benchmarks.contestants import CONTESTANTS, LIMIT, OURS, TORCH
from benchmarks.picture import DARK, LIGHT, draw, recorded_rates
from benchmarks.rounds import Rounds
from benchmarks.spread import ratios

RESULTS = Path(__file__).with_name("RESULTS.md")
IMAGES = Path(__file__).parents[1] / "docs" / "images"


def save(figure: Any, path: Path) -> list[Path]:
    """Write a matplotlib figure as PNG and SVG; returns both paths."""
    paths = [path.with_suffix(".png"), path.with_suffix(".svg")]
    for each in paths:
        figure.savefig(each, bbox_inches="tight", dpi=150)
    return paths


def plot_rates(rounds: Mapping[str, Rounds], path: Path) -> list[Path]:
    """Bars of the median ratio to torch's DataLoader, with quartiles, on a logarithmic scale."""
    from matplotlib.figure import Figure as Canvas

    all_names = [*CONTESTANTS, LIMIT]
    names = [name for name in all_names if any(name in r.answers for r in rounds.values())]
    canvas = Canvas(figsize=(2 + 1.5 * len(rounds), 5))
    axes = canvas.add_subplot()
    width = 0.8 / max(len(names), 1)
    for number, name in enumerate(names):
        places, medians, below, above = [], [], [], []
        for place, each in enumerate(rounds.values()):
            rates, base = each.column(name, "batches_per_s"), each.column(TORCH, "batches_per_s")
            if not rates or not base:
                continue
            ratio = ratios(rates, base)
            places.append(place + (number - (len(names) - 1) / 2) * width)
            medians.append(ratio.median)
            below.append(ratio.median - ratio.low)
            above.append(ratio.high - ratio.median)
        axes.bar(
            places,
            medians,
            width,
            yerr=[below, above],
            label=name,
            color="black" if name == OURS else "lightgray" if name == LIMIT else None,
            error_kw={"linewidth": 0.8},
        )
    for place, workload in enumerate(rounds):
        axes.hlines(
            BARS[workload].over_torch, place - 0.45, place + 0.45, colors="red", linestyles="dashed"
        )
    axes.set_yscale("log")
    axes.set_xticks(range(len(rounds)), list(rounds))
    axes.set_ylabel("batches a second, torch DataLoader = 1 (dashed: the bar)")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=5, fontsize="small")
    return save(canvas, path)


def recorded_pictures() -> dict[Path, str]:
    """The pictures of the record, by the file that each belongs into.

    The narrow ones have one column, for a phone.
    """
    rates = recorded_rates(RESULTS.read_text())
    return {
        IMAGES / f"rates{shape}-{name}.svg": draw(rates, palette, columns)
        for shape, columns in (("", 2), ("-narrow", 1))
        for name, palette in (("light", LIGHT), ("dark", DARK))
    }


if __name__ == "__main__":
    for file, picture in recorded_pictures().items():
        file.write_text(picture)
