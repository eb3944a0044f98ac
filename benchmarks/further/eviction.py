"""Hit rates of a cache that holds part of a data set, by simulation: what to throw out.

python -m benchmarks.further.eviction [--samples 4000] [--epochs 10] [--share 0.5]

The contestants see the same accesses, epoch after epoch of a shuffle:

- ``lru``: the least recently used goes.
- ``fixed``: whatever came first stays.
- ``belady``: the one that is wanted last goes, unless the new one is wanted later still. It knows
  all epochs, one sample after the other.
- ``ours``: the books of `swift_loader.cache`, as a store runs them: batch by batch, told the plan,
  and bound by bytes.
"""

from __future__ import annotations

import argparse
import json
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from swift_loader.cache.books import Books
from swift_loader.cache.farthest import Farthest
from swift_loader.cache.messages import IN_MEMORY, TO_MAKE, Ask, Keep, Room
from swift_loader.plan import Plan

__all__ = ["belady", "fixed", "lru", "ours", "rates"]

_PAGE = 4096
Batches = Sequence[Sequence[list[int]]]  # an epoch's, consumers mixed as they step together


def batches_of(plan: Plan, epochs: int, steps: int) -> Batches:
    """The batches of all consumers, step by step, up to `steps` in each epoch."""
    return [
        [
            plan.batch(epoch, consumer, k).tolist()
            for k in range(steps)
            for consumer in range(plan.nb_consumer)
            if k < plan.nb_batches(consumer)
        ]
        for epoch in range(epochs)
    ]


def lru(batches: Batches, capacity: int) -> list[float]:
    """Hit rate of each epoch."""
    kept: OrderedDict[int, None] = OrderedDict()

    def look(sample: int) -> bool:
        hit = sample in kept
        kept[sample] = None
        kept.move_to_end(sample)
        if len(kept) > capacity:
            kept.popitem(last=False)
        return hit

    return _rates(batches, look)


def fixed(batches: Batches, capacity: int) -> list[float]:
    """Hit rate of each epoch."""
    kept: set[int] = set()

    def look(sample: int) -> bool:
        hit = sample in kept
        if len(kept) < capacity:
            kept.add(sample)
        return hit

    return _rates(batches, look)


def belady(batches: Batches, capacity: int) -> list[float]:
    """Hit rate of each epoch."""
    flat = [sample for epoch in batches for batch in epoch for sample in batch]
    again = np.full(len(flat), 2**62, np.int64)
    seen: dict[int, int] = {}
    for at in reversed(range(len(flat))):
        again[at] = seen.get(flat[at], 2**62)
        seen[flat[at]] = at
    kept: Farthest[int] = Farthest()
    now = iter(again.tolist())

    def look(sample: int) -> bool:
        hit, time = sample in kept, next(now)
        if not hit and len(kept) >= capacity:
            later = kept.later_than(time)
            victim = next(later, None)
            later.close()
            if victim is None:
                return False
            kept.remove(victim)
        kept.put(sample, time)
        return hit

    return _rates(batches, look)


def ours(
    plan: Plan, epochs: int, steps: int, memory: int, nbytes: Callable[[int], int]
) -> tuple[list[float], int]:
    """Hit rate of each epoch, and how many samples went. `nbytes`: of a sample."""
    books = Books(memory, 4 * memory, _PAGE)
    books.enter(1, 0)
    books.follow(plan)
    rates = []
    serial = 0
    for epoch in range(epochs):
        hits = asked = 0
        for k in range(steps):
            for consumer in range(plan.nb_consumer):
                if k >= plan.nb_batches(consumer):
                    continue
                serial += 1
                keys = plan.batch(epoch, consumer, k)
                rows = books.ask(1, Ask(serial, 0, 0, epoch, k, consumer, False, keys)).rows
                hits += int((rows[:, 0] == IN_MEMORY).sum())
                asked += len(keys)
                made = keys[rows[:, 0] == TO_MAKE].tolist()
                table = [(0, key, epoch, k, 0, nbytes(key), 0, 1000) for key in made]
                if made:
                    placed = books.room(1, Room(serial, np.array(table, np.int64))).rows
                    kept = [
                        (0, key, int(place[0] >= 0), 0, 0)
                        for key, place in zip(made, placed, strict=True)
                    ]
                    books.keep(1, Keep(serial, np.array(kept, np.int64)))
                books.done(1, serial)
                assert books.figures(0).memory_used <= memory
        rates.append(hits / asked)
    return rates, books.figures(0).evicted


def rates(
    plan: Plan, epochs: int, share: float, sizes: Sequence[int], run: float = 1.0
) -> dict[str, list[float]]:
    """Hit rates of all contestants; ours has as many bytes as the others have samples.

    `share`: of the samples, for which there is room. `run`: of each epoch, before it is left.
    """
    steps = int(plan.nb_batches(0) * run)
    batches = batches_of(plan, epochs, steps)
    capacity = int(plan.nb_samples * share)
    memory = int(sum(sizes) * share) + (256 + _PAGE // 64) * capacity
    return {
        "lru": lru(batches, capacity),
        "fixed": fixed(batches, capacity),
        "belady": belady(batches, capacity),
        "ours": ours(plan, epochs, steps, memory, sizes.__getitem__)[0],
    }


def _rates(batches: Batches, look: Callable[[int], bool]) -> list[float]:
    found = []
    for epoch in batches:
        hits = [look(sample) for batch in epoch for sample in batch]
        found.append(sum(hits) / len(hits))
    return found


def main() -> None:
    """Print a line for each contestant."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--consumers", type=int, default=2)
    options = parser.parse_args()
    plan = Plan(options.samples, 32, options.consumers, True, 0, 0)
    sizes = [150_528] * options.samples
    for run in (1.0, 0.6):
        found = rates(plan, options.epochs, options.share, sizes, run)
        for name, each in found.items():
            later = sum(each[1:]) / (len(each) - 1)
            print(
                json.dumps(
                    {
                        "epochs run for": run,
                        "rule": name,
                        "hit rate in later epochs": round(later, 4),
                        "each": [round(rate, 3) for rate in each],
                    }
                )
            )


if __name__ == "__main__":
    main()
