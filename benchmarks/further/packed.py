"""Packing documents: tokens a second beside the same tokens unpacked and beside peers, and padding.

Documents have about 600 tokens (log-normal lengths), sequences 2048, a batch 32 of them. All read
views of one array in memory, with 2 workers, shuffled. A token counts where it is no padding.

Packed batches have tokens and ``cu_seqlens``, as the unpacked ones; *all fields*: places and
document ids too, which are as many bytes as the tokens.

- *unpacked documents*: batches of as many documents as make as many tokens, joined end to end;
- *windows*: the array cut every 2048 tokens by slices, which needs no packing at all;
- *grain*: its first-fit packing, in its worker processes;
- *packed before*: torch's DataLoader over sequences that were packed into memory beforehand, as
  torchtune's ``PackedDataset`` and TRL's ``pack_dataset`` do it.

Padding is that of the standard library's texts, about 4 bytes a token, in sequences of 4096.
"""

from __future__ import annotations

import sysconfig
import time
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import Figure, over
from benchmarks.further.pairs import measure_in_turn
from benchmarks.spread import spread

NB_WORKER = 2
LENGTH, BATCH = 2048, 32
NB_DOCUMENTS = 30_000
WARM_BATCHES, WINDOW_S = 24, 1.0
PACKED, ALL_FIELDS, SPLIT = "best-fit", "best-fit, all fields", "split"
UNPACKED, WINDOWS = "unpacked documents", "windows"
GRAIN, BEFORE = "grain", "packed before"
BARS = {UNPACKED: 0.9, GRAIN: 3.0, BEFORE: 3.0}


def lengths_of_documents() -> Any:
    drawn = np.random.default_rng(0).lognormal(6.0, 0.9, NB_DOCUMENTS)
    return np.clip(drawn, 8, 20_000).astype(np.int64)


class Documents:
    """Views of one array."""

    def __init__(self) -> None:
        self.lengths = lengths_of_documents()
        self.ends = np.cumsum(self.lengths)
        self.tokens = np.arange(int(self.ends[-1])) % 50_000 + 1

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Any:
        return self.tokens[self.ends[index] - self.lengths[index] : self.ends[index]]


class Windows(Documents):
    """The same array, cut every so many tokens."""

    def __len__(self) -> int:
        return len(self.tokens) // LENGTH

    def __getitem__(self, index: int) -> Any:
        return {"tokens": self.tokens[index * LENGTH : (index + 1) * LENGTH]}


class PackedBefore:
    """Rows in memory: tokens, places and document ids."""

    def __init__(self) -> None:
        from swift_loader import Packed

        documents = Documents()
        packed = Packed(documents, LENGTH, documents.lengths, "best-fit")
        rows = [packed[i] for i in range(len(packed))]
        names = ("tokens", "positions", "document_ids")
        self.rows = {name: np.stack([row[name] for row in rows]) for name in names}

    def __len__(self) -> int:
        return len(self.rows["tokens"])

    def __getitem__(self, index: int) -> Any:
        return {name: rows[index] for name, rows in self.rows.items()}


def joined(documents: list[Any]) -> Any:
    """Documents end to end, and where each begins."""
    import torch

    ends = np.cumsum([0, *map(len, documents)], dtype=np.int32)
    return {"tokens": torch.from_numpy(np.concatenate(documents)), "cu_seqlens": ends}


def _ours(kind: str) -> Iterator[Any]:
    from swift_loader import Packed, SwiftLoader
    from swift_loader.sources.packed import FIELDS

    options: dict[str, Any] = {"batch_size": BATCH}
    data: Any
    if kind == WINDOWS:
        data = Windows()
    elif kind == UNPACKED:
        data = Documents()
        options = {
            "batch_size": round(BATCH * LENGTH / data.lengths.mean()),
            "collate_fn": joined,
        }
    else:
        documents = Documents()
        how: Any = SPLIT if kind == SPLIT else PACKED
        fields = FIELDS if kind == ALL_FIELDS else ("tokens", "cu_seqlens")
        data = Packed(documents, LENGTH, documents.lengths, how, fields=fields)
    with SwiftLoader(data, worker_per_consumer=NB_WORKER, shuffle=True, **options) as loader:
        while True:
            yield from loader


def _before() -> Iterator[Any]:
    from torch.utils.data import DataLoader

    data: Any = PackedBefore()
    loader: Any = DataLoader(
        data, BATCH, shuffle=True, num_workers=NB_WORKER, persistent_workers=True
    )
    while True:
        yield from loader


def _grain() -> Iterator[Any]:
    import grain
    from grain import experimental

    samples = grain.MapDataset.source(Documents()).shuffle(seed=0).repeat()
    stream = samples.map(lambda tokens: {"tokens": tokens[:LENGTH]}).to_iter_dataset(
        grain.ReadOptions(num_threads=0)
    )
    packed = experimental.FirstFitPackIterDataset(
        stream, length_struct={"tokens": LENGTH}, num_packing_bins=2 * BATCH
    )
    yield from packed.batch(BATCH).mp_prefetch(grain.MultiprocessingOptions(num_workers=NB_WORKER))


def rate(kind: str) -> dict[str, Any]:
    """Tokens that are no padding, a second; every field of a batch is copied once."""
    import torch

    torch.set_num_threads(1)
    batches = {GRAIN: _grain, BEFORE: _before}.get(kind, partial(_ours, kind))()
    place = np.empty(4 * BATCH * LENGTH, np.int64)
    tokens, began_s = 0, 0.0
    for count, batch in enumerate(batches):
        for field in batch.values():
            array = np.asarray(field).reshape(-1)
            place[: len(array)] = array
        if count < WARM_BATCHES:
            continue
        if count == WARM_BATCHES:
            began_s = time.perf_counter()
            continue
        tokens += int(np.count_nonzero(np.asarray(batch["tokens"])))
        elapsed_s = time.perf_counter() - began_s
        if elapsed_s > WINDOW_S:
            break
    return {"tokens_per_s": tokens / elapsed_s}


def lengths_of_texts() -> Any:
    """About as many tokens as each text of the standard library has."""
    folder = Path(sysconfig.get_path("stdlib"))
    paths = [*sorted(folder.glob("*.py")), *sorted(folder.glob("[a-z]*/*.py"))]
    return np.array([path.stat().st_size // 4 + 1 for path in paths], np.int64)


def _rests(lengths: Any, room: int) -> tuple[int, list[int]]:
    """Sequences that long documents fill, and the pieces that are left."""
    return int((lengths // room).sum()), [size for size in (lengths % room).tolist() if size]


def next_fit(lengths: Any, room: int) -> int:
    """Sequences by one open sequence at a time, in the documents' order, none cut but too long
    ones (torchtune's ``PackedDataset`` with ``split_across_pack=False``)."""
    full, pieces = _rests(lengths, room)
    count, left = full, 0
    for size in pieces:
        if size > left:
            count, left = count + 1, room
        left -= size
    return count


def first_fit_decreasing(lengths: Any, room: int) -> int:
    """Sequences by the first that has room, largest pieces first."""
    full, pieces = _rests(lengths, room)
    left: list[int] = []
    for size in sorted(pieces, reverse=True):
        place = next((at for at, each in enumerate(left) if each >= size), None)
        if place is None:
            left.append(room - size)
        else:
            left[place] -= size
    return full + len(left)


def paddings(room: int = 4096) -> dict[str, float]:
    """The share of padding, by method."""
    from swift_loader.plan.packing import Lengths
    from swift_loader.plan.packing_fit import BestFitPacking

    lengths = lengths_of_texts()
    counts = {
        PACKED: BestFitPacking(Lengths(lengths), room).nb_sequences,
        "first-fit-decreasing": first_fit_decreasing(lengths, room),
        "next-fit": next_fit(lengths, room),
    }
    return {name: 1 - int(lengths.sum()) / (count * room) for name, count in counts.items()}


def run(is_quick: bool, out: Path) -> list[Figure]:
    """Tokens a second of best-fit packing over each other way, and the padding."""
    kinds = [PACKED, ALL_FIELDS, SPLIT, UNPACKED, WINDOWS, BEFORE]
    kinds += [GRAIN] if find_spec("grain") else []
    probes = {kind: partial(rate, kind=kind) for kind in kinds}
    rounds = measure_in_turn("packed", probes, is_quick)
    mine = rounds.column(PACKED, "tokens_per_s")
    figures = []
    for other in kinds[1:]:
        theirs = rounds.column(other, "tokens_per_s")
        if mine and theirs:
            figures.append(
                over("packed", f"best-fit, tokens/s over {other}", mine, theirs, BARS.get(other))
            )
    for name, share in paddings().items():
        bar = 1.0 if name == PACKED else None
        figures.append(Figure("packed", f"padding, {name}", spread([100 * share]), "%", bar))
    return figures


if __name__ == "__main__":
    from benchmarks.command import main

    main(["--only", "packed"])
