"""Run by torchrun: torch's loader as accelerate prepares it, and ours through `for_accelerate`.

torchrun --nproc_per_node 2 -m tests.frameworks.accelerate_run FOLDER
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

from swift_loader import SwiftLoader
from swift_loader.integrations.accelerate import for_accelerate
from tests.datasets import Numbers, Stream

BATCH, NB_STEPS, NB_DONE = 4, 4, 2
#: the last on three ranks: more samples are repeated than one rank has in its last batch
CASES = [(n, drop_last) for n in (48, 45, 49) for drop_last in (False, True)]


class Run:
    """Trains, and writes down when the gradients are synchronised and what is gathered."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.model = accelerator.prepare(nn.Linear(4, 1))
        self.syncs: list[int] = []
        self.gathered: list[int] = []
        self.step = 0

    def over(self, loader: Iterable[Any]) -> Iterator[int]:
        """Go through an epoch; gives the number of steps so far after each."""
        for rows, indices in loader:
            self.step += 1
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(self.model(rows / 100).square().mean())
                if self.accelerator.sync_gradients:
                    self.syncs.append(self.step)
            self.gathered += self.accelerator.gather_for_metrics(indices).tolist()
            yield self.step

    def facts(self, loader: Any) -> dict[str, Any]:
        """What it wrote down over two epochs of the loader."""
        self.accelerator.step = 0
        self.syncs, self.gathered, self.step, lengths = [], [], 0, []
        for _ in range(2):
            lengths.append(len(loader))
            for _ in self.over(loader):
                pass
        return {"syncs": self.syncs, "gathered": sorted(self.gathered), "lengths": lengths}

    def rest(self, rest: Iterable[Any]) -> dict[str, Any]:
        """What it wrote down over the rest of an epoch."""
        self.accelerator.step = 0
        self.syncs, self.gathered, self.step = [], [], 0
        for _ in self.over(rest):
            pass
        return {"syncs": self.syncs, "gathered": sorted(self.gathered)}


def compared(run: Run, n: int, drop_last: bool) -> dict[str, Any]:
    accelerator = run.accelerator
    theirs = accelerator.prepare(
        DataLoader(Numbers(n), batch_size=BATCH, shuffle=True, drop_last=drop_last)  # type: ignore[arg-type]
    )
    given = SwiftLoader(
        Numbers, {"n": n}, BATCH, shuffle=True, drop_last=drop_last, num_workers=1, validate=False
    )
    ours = for_accelerate(given, accelerator)
    facts: dict[str, Any] = {"case": [n, drop_last]}
    facts["untouched"] = accelerator.prepare(ours) is ours
    facts["untouched"] &= accelerator.prepare_data_loader(ours) is ours
    facts["theirs"], facts["ours"] = run.facts(theirs), run.facts(ours)
    for loader, name in ((theirs, "theirs"), (ours, "ours")):
        loader.set_epoch(5)
        done = [run.accelerator.gather(i).tolist() for _, i in itertools.islice(loader, NB_DONE)]
        facts[f"{name}_done"] = sorted(itertools.chain(*done))
        loader.set_epoch(5)
        rest = accelerator.skip_first_batches(loader, NB_DONE)
        facts[f"{name}_skipped"] = run.rest(rest)
        loader.set_epoch(6)
        facts[f"{name}_after"] = run.rest(loader)
    ours.close()
    return facts


def interrupted(run: Run, folder: Path, kind: str) -> dict[str, Any]:
    """Save in the middle of an epoch, finish it, load, and finish it again."""
    accelerator = run.accelerator
    options: dict[str, Any] = {"batch_size": BATCH, "num_workers": 1, "validate": False}
    if kind == "numbers":
        given = SwiftLoader(Numbers, {"n": 45}, shuffle=True, **options)
    else:
        given = SwiftLoader(Stream, {"n": 48}, **options)
    loader = for_accelerate(given, accelerator)
    accelerator.register_for_checkpointing(loader)
    accelerator.step = 0
    run.syncs, run.gathered, run.step = [], [], 0
    for step in run.over(loader):
        if step == NB_DONE:
            done = list(run.gathered)
            accelerator.save_state(str(folder / kind))
            accelerator.wait_for_everyone()
    whole = {"syncs": run.syncs, "gathered": run.gathered}
    accelerator.load_state(str(folder / kind))
    before = accelerator.step
    run.syncs, run.gathered, run.step = [], [], NB_DONE
    for _ in run.over(loader):
        pass
    loader.close()
    accelerator._custom_objects.clear()
    return {
        "done": done,
        "whole": whole,
        "rest": {"syncs": run.syncs, "gathered": run.gathered},
        "step": before,
    }


def main(folder: Path) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=NB_STEPS)
    run = Run(accelerator)
    facts = {
        "cases": [compared(run, n, drop_last) for n, drop_last in CASES],
        "interrupted": {kind: interrupted(run, folder, kind) for kind in ("numbers", "stream")},
    }
    (folder / f"rank{accelerator.process_index}.json").write_text(json.dumps(facts))
    accelerator.end_training()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
