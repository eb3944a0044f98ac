"""The one command: ``python -m benchmarks``.

Measures the nine workloads (some 15 minutes; ``--quick``: some 3), prints the tables, and writes
``results.json``, ``rates.png`` and ``rates.svg`` into ``--out``. ``--only`` takes names of
workloads and of further measurements; ``--all`` adds all of the latter (some 30 minutes more).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

# Before numpy and torch are imported: one thread each, here and in every process that follows.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

from benchmarks import machine, plot, table, throughput
from benchmarks.bars import BARS
from benchmarks.figures import Figure
from benchmarks.further import MODULES
from benchmarks.rounds import Rounds

_NB_ROUNDS = 5
_NB_QUICK_ROUNDS = 2


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short windows and 2 rounds")
    parser.add_argument("--rounds", type=int, help=f"rounds of the table (default {_NB_ROUNDS})")
    parser.add_argument("--all", action="store_true", help="the further measurements too")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        choices=[*BARS, *MODULES],
        metavar="NAME",
        help="of: " + ", ".join([*BARS, *MODULES]),
    )
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what was asked for, print it, and leave it in the folder ``--out``.

    The results are written after every workload and measurement: a run that is cut short has them.
    """
    chosen = _arguments(arguments)
    repository = str(Path(__file__).parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join([repository, os.environ.get("PYTHONPATH", "")])
    chosen.out.mkdir(parents=True, exist_ok=True)
    results = Results(chosen.out)
    print(machine.warning(results.others_share), file=sys.stderr)

    if not chosen.only or any(name in BARS for name in chosen.only):
        nb_rounds = chosen.rounds or (_NB_QUICK_ROUNDS if chosen.quick else _NB_ROUNDS)
        workloads = [name for name in chosen.only if name in BARS]
        for workload, rounds in throughput.run(nb_rounds, chosen.quick, workloads):
            results.rounds[workload] = rounds
            results.add(throughput.figures_of(workload, rounds))
    for name, module in MODULES.items():
        if name in chosen.only or chosen.all:
            results.add(import_module(f"benchmarks.further.{module}").run(chosen.quick, chosen.out))
    if results.rounds:
        print("\n" + table.rates(results.rounds))
        plot.plot_rates(results.rounds, chosen.out / "rates")
    print(machine.warning(results.others_share))


class Results:
    """What was measured so far, printed and kept as it comes."""

    def __init__(self, out: Path) -> None:
        self.rounds: dict[str, Rounds] = {}
        self.others_share = machine.others_share()
        self._machine = machine.describe()
        self._figures: list[Figure] = []
        self._path = out / "results.json"

    def add(self, figures: Sequence[Figure]) -> None:
        """Print `figures`, and write everything so far."""
        self._figures += figures
        if figures:
            print("\n" + table.figures(figures), flush=True)
        result = {
            "machine": self._machine
            | {
                "share_used_by_others_before": self.others_share,
                "load_average": os.getloadavg(),
            },
            "figures": [figure.to_json() for figure in self._figures],
            "runs": {name: rounds.answers for name, rounds in self.rounds.items()},
            "failures": {name: rounds.failures for name, rounds in self.rounds.items()},
        }
        self._path.write_text(json.dumps(result, indent=1) + "\n")
