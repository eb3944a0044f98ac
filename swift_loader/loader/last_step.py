"""What a framework must know of the last step of an epoch.

Hugging Face accelerate asks the loader that is being iterated; see
`swift_loader.integrations.accelerate`.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

from swift_loader.order.part import UNKNOWN, EpochPart
from swift_loader.order.planned import PlannedOrder
from swift_loader.order.told import inner_of, inner_part

if TYPE_CHECKING:
    from swift_loader.loader.loader import SwiftLoader

__all__ = [
    "may_be_padded",
    "nb_once_in_last_step",
    "next_epoch",
    "tells_its_end",
    "warn_if_not_told",
]


def may_be_padded(loader: SwiftLoader[Any]) -> bool:
    """Whether nobody has said how epochs end, and the plan can repeat samples there."""
    given, config = loader._given, loader._config
    is_told = "tail" in given or bool(given.get("drop_last"))
    of_plan = not config.by_sampler and config.batch_tokens is None
    return of_plan and not is_told and not loader.started and loader.nb_samples is not None


def nb_once_in_last_step(loader: SwiftLoader[Any]) -> int | None:
    """Samples of all consumers' last batches without those repeated; they come before these.

    0: nothing is repeated. None: nobody can tell. Of the epoch that is being iterated, else of the
    next one.
    """
    order = inner_of(loader._the_order())
    if not isinstance(order, PlannedOrder):
        return None
    plan = order.plan_of(inner_part(loader._part_at_hand()))
    if not plan.partition.nb_repeated:
        return 0
    if not plan.full_batch:  # a mixture whose sources have other batch sizes
        return None
    nb_places = len(plan.stream) % (plan.batch_size * plan.nb_consumer)
    return nb_places * (plan.full_batch // plan.batch_size)


def next_epoch(loader: SwiftLoader[Any]) -> int:
    """The epoch that the next `iter` gives."""
    loader._apply_state()
    return loader._epoch


def tells_its_end(loader: SwiftLoader[Any]) -> None:
    """An adapter tells accelerate when an epoch of the loader ends: there is no need to warn."""
    loader._tells_its_end = True


def warn_if_not_told(part: EpochPart) -> None:
    """Warn if accelerate accumulates gradients over steps by which the epoch does not divide.

    It takes the last step of an epoch for one in between, in silence, unless the loader tells it.
    """
    module = sys.modules.get("accelerate.state")
    if module is None:
        return
    state = module.GradientState()  # there is one in a process
    if state.num_steps == 1 or not state.sync_with_dataloader or state.in_dataloader:
        return
    if part.count == UNKNOWN or part.count % state.num_steps:
        warnings.warn(
            f"accelerate accumulates gradients over {state.num_steps} steps, and does not learn "
            "when an epoch of this loader ends: its last gradients would go into the next epoch. "
            "Iterate what swift_loader.integrations.accelerate.for_accelerate(loader, accelerator) "
            "returns",
            stacklevel=4,
        )
