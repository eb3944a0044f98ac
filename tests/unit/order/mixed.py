"""States of mixtures that runs wrote, and what goes on from such a state, sound or changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

from swift_loader.errors import StateError
from swift_loader.order.order import Order
from swift_loader.order.part import Taken
from swift_loader.order.planned import PlannedOrder
from tests.unit.plan.mixtures import plan_of

LENGTHS = {"web": 37, "code": 12, "books": 5}
WEIGHTS = {"web": 0.6, "code": 0.3, "books": 0.1}
OTHERS = {"web": 1.0, "code": 2.0, "books": 1.0}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "samples": {},
    "by step": {"weights": [(0, WEIGHTS), (4, OTHERS), (90, WEIGHTS)]},
    "batches": {"mix": "batch", "batch_sizes": {"web": 8, "code": 3}},
    "samples drop": {"exhausted": "drop"},
    "samples stop": {"exhausted": "stop"},
    "batches drop": {"exhausted": "drop", "mix": "batch"},
    "batches stop": {"exhausted": "stop", "mix": "batch"},
    "full batches": {"tail": "drop"},
    "padded": {"tail": "pad", "exhausted": "drop"},
}


@cache
def readers(kind: str) -> list[PlannedOrder]:
    """The loader as it was, and others that may go on in its place. To be read only."""
    options = {"weights": WEIGHTS, **KINDS[kind]}
    changed = {"web": 40, "code": 9, "news": 20}
    return [
        PlannedOrder(plan_of(LENGTHS, nb_consumer=2, **options), 1),
        PlannedOrder(plan_of(LENGTHS, nb_consumer=3, batch_size=3, **options), 1),
        PlannedOrder(plan_of(LENGTHS, nb_consumer=2, **{**options, "weights": OTHERS}), 1),
        PlannedOrder(
            plan_of(
                changed,
                nb_consumer=1,
                **{**options, "weights": dict.fromkeys(changed, 1.0), "batch_sizes": {}},
            ),
            0,
        ),
    ]


def state_of(order: Order, epoch: int, ks: list[int]) -> Any:
    """After these batches, as it comes back from a file."""
    had = Taken(order.part(epoch))
    for k in ks:
        had.add(k)
    return json.loads(json.dumps(order.capture(had)))


@cache
def states(kind: str) -> list[Any]:
    """Fresh ones, of a later epoch, and of resumes as another mixture, with holes and without.

    To be read only.
    """
    order, dealt, weighed, changed = readers(kind)
    first = PlannedOrder(order.plan, 0)
    uneven = [state_of(first, 0, [0, 2]), state_of(order, 0, [0])]
    found = [state_of(order, 0, []), uneven[1], state_of(order, 3, [0, 1]), uneven]
    for reader in (dealt, weighed, changed):
        for state in (uneven, state_of(order, 1, [0, 1])):
            resumed, epoch = reader.resumed(state)
            begun = resumed.part(epoch).first
            found.append(state_of(resumed, epoch, []))
            found.append(state_of(resumed, epoch, [begun]))
            found.append(state_of(resumed, epoch + 2, [0]))
            again, epoch = changed.resumed(state_of(resumed, epoch, [begun]))
            found.append(state_of(again, epoch, []))
    return found


def goes_on(reader: PlannedOrder, state: Any) -> bool:
    """False: the state is refused. Otherwise all that a loop asks for next is there."""
    try:
        order, epoch = reader.resumed(state)
    except StateError:
        return False
    for number in (epoch, epoch + 1):
        part = order.part(number)
        batches = list(islice(order.batches(part), 3))
        batches += islice(order.batches(replace(part, first=max(part.first, part.count - 1))), 1)
        mixture = order.plan_of(part).mixture  # type: ignore[attr-defined]
        for batch, details in batches:
            indices = order.samples(batch, details)
            assert indices
            assert min(indices) >= 0
            assert max(indices) < mixture.offsets[-1]
            assert sum(order.samples_by_source(batch, 1)) == len(indices)  # type: ignore[attr-defined]
        again = state_of(order, number, [batch.k for batch, _ in batches[:1]])
        reader.resumed(again)
    return True
