"""Where this loader does not do as torch's does, each with its reason.

The table in ``docs/moving.md`` is made of these (``python -m tests.differential.differences``), and
each is held by a test that fails when the two loaders do the same.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[2] / "docs" / "moving.md"
BEGIN, END = "<!-- differences: begin -->", "<!-- differences: end -->"


class Difference(NamedTuple):
    """What both do. The texts are Markdown, for users."""

    subject: str
    torch: str
    here: str


DIFFERENCES: dict[str, Difference] = {
    "shuffled order": Difference(
        "The order of `shuffle=True`",
        "a `RandomSampler` draws it from the global generator",
        "a function of `seed` and the epoch, and the default `seed` is what the script gave "
        "`torch.manual_seed`; the samples and the batch sizes are as torch's",
    ),
    "none": Difference(
        "`None` in a sample",
        "`TypeError`",
        "collated to a list of `None`",
    ),
    "dataclass": Difference(
        "A dataclass as sample",
        "`TypeError`",
        "collated field by field to the same class",
    ),
    "counter": Difference(
        "A `Counter` as sample",
        "the counts of the first sample are added to those of each",
        "collated key by key, as any other mapping",
    ),
    "mixed dtypes": Difference(
        "Tensors of different dtypes in one batch",
        "in a worker, the first one's dtype if the others can be cast to it, else `TypeError`; "
        "promoted in the training process (`num_workers=0`)",
        "promoted to a common dtype everywhere",
    ),
    "collate errors": Difference(
        "Samples that don't fit together (shapes, lengths, keys)",
        "`RuntimeError`, `KeyError` or `TypeError`, depending on where collating fails",
        "`BatchError` (both a `TypeError` and a `ValueError`); it names the field, the shapes and "
        "the samples",
    ),
    "requires grad": Difference(
        "A tensor that requires grad",
        "`RuntimeError` in a worker",
        "collated detached: a gradient can't pass between processes",
    ),
    "shared memory": Difference(
        "Tensors of one batch that share memory, such as a tensor and a view of it",
        "they still share it: a change of one in place is seen in the other",
        "each has memory of its own",
    ),
    "lazy views": Difference(
        "A conjugated or negated view (`x.conj()`), as a sample that is not stacked",
        "arrives from a worker without the conjugation, silently",
        "arrives with its values",
    ),
    "attributes": Difference(
        "Attributes that are hung on a plain tensor",
        "lost on the way from a worker",
        "arrive",
    ),
    "valueless": Difference(
        "Quantized tensors, and those on the device `meta`",
        "arrive, quantized ones without their scale",
        "`BatchError`; it names the field, and what to return instead",
    ),
    "made class": Difference(
        "A class that the data set makes in a worker (`namedtuple` or `type` in `dataset[i]`)",
        "its objects can't leave the worker: the loop waits for ever, or until `timeout`",
        "they arrive; in each batch the class is another one",
    ),
    "StopIteration": Difference(
        "`dataset[i]` raises `StopIteration`, or something that is not an `Exception`",
        "`StopIteration`: the epoch ends there, silently; anything else: the worker ends",
        "`WorkerError`, with the samples; its `__cause__` is the original",
    ),
    "error text": Difference(
        "An error in `dataset[i]`",
        "the same class, with the worker's traceback as its message; `RuntimeError` where the "
        "class can't be built from a message",
        "the same class with its own arguments and attributes; the worker's traceback, the batch "
        "and the samples are in its `__cause__`",
    ),
    "whole stream": Difference(
        "A stream that does not split itself among workers, with several workers",
        "every worker gives every item",
        "every item comes once",
    ),
    "stream under ranks": Difference(
        "A stream that splits itself among workers and not by rank, with several ranks",
        "every rank gives every item",
        'every item comes once over all ranks; torch\'s way with `stream_split="workers"`',
    ),
    "wrong length": Difference(
        "A sampler that gives more or fewer keys than its `__len__` says",
        "all keys that it gives, silently",
        "all keys that it gives, with a `RuntimeWarning`",
    ),
    "drawn as it goes": Difference(
        "A sampler that draws from a global generator as it goes",
        "is asked `prefetch_factor` batches a worker ahead, so the script's own draws come between "
        "at the same places in every run",
        "is asked as far ahead as workers are, which depends on time; a `RuntimeWarning` says so. "
        "What it draws from a generator of its own is the same in every run",
    ),
    "random draws": Difference(
        "Random draws in `dataset[i]`",
        "from one generator for each worker, so they depend on the number of workers",
        "seeded for each batch: the same whatever the number of workers, in every run with the "
        "same `seed`",
    ),
    "kept state": Difference(
        "What a data set or `collate_fn` changes in itself in a worker (a counter, a cache)",
        "gone at the end of the epoch, unless `persistent_workers=True`",
        "stays for all epochs, as the workers do",
    ),
    "changed between epochs": Difference(
        "What the script changes in a data set (or `collate_fn`) after the first `iter`",
        "workers see it from the next `iter` on, unless `persistent_workers=True`",
        "workers don't see it, as they stay, and a warning names a number or a text that has "
        "changed; `call_dataset` and `set_epoch` reach them",
    ),
    "many workers": Difference(
        "More workers than CPUs",
        "a warning suggests no more than there are CPUs",
        "no warning: workers often wait for disks or networks; "
        '`worker_per_consumer="auto"` adds workers as long as the loop waits and CPUs are free',
    ),
    "no shuffler": Difference(
        "`shuffle=True` for data pipes without a shuffler",
        "a warning that one is added at the end; the items come in order all the same",
        "the same warning, and the items are shuffled",
    ),
    "worker of a batch": Difference(
        "Which worker makes a batch of a map-style data set",
        "the workers take turns, also if one of them is slow",
        "any worker that is free",
    ),
    "early errors": Difference(
        "An error of the data set or `collate_fn` in the first batch",
        "comes from the first `next`",
        "comes when the loader is built, unless `validate=False` or `num_workers=0`",
    ),
    "set attributes": Difference(
        "Setting an attribute of a loader, such as `num_workers`, `collate_fn` or `batch_size`",
        "`ValueError` for the data set, samplers, `batch_size`, `drop_last` and "
        "`persistent_workers`; others count from the next `iter` on",
        "`ConfigError` (a `ValueError`) for all of them; `with_options` gives another loader",
    ),
    "own epoch": Difference(
        "`set_epoch` of the data set",
        "called by the script alone; workers that are started after it have that epoch",
        "workers are told the loader's epoch, also where the script tells none (streams of Hugging "
        "Face then read their shards in another order in each epoch); a warning says so if the "
        "script tells another one; `loader.set_epoch(epoch)` chooses it",
    ),
    "ranks": Difference(
        "Several ranks and a map-style data set",
        "`DistributedSampler` deals samples out in turn, and repeats some where they don't divide",
        'each rank has a part of its own; no sample is repeated unless `tail="pad"`',
    ),
}


def table() -> str:
    """The table of the page, between its marks."""
    rows = [f"| {one.subject} | {one.torch} | {one.here} |" for one in DIFFERENCES.values()]
    return "\n".join([BEGIN, "| | torch's DataLoader | here |", "|---|---|---|", *rows, END])


def on_page(text: str) -> str:
    """The part of `text` that the table takes. Raises `ValueError` where the marks are missing."""
    return text[text.index(BEGIN) : text.index(END) + len(END)]


if __name__ == "__main__":
    text = PAGE.read_text()
    PAGE.write_text(text.replace(on_page(text), table()))
    sys.stdout.write(f"{PAGE}: {len(DIFFERENCES)} differences\n")
