"""What `swift_loader.sharing` asks of a loader, beside what every script may ask."""

from __future__ import annotations

from typing import Any

from swift_loader.errors import ClosedError
from swift_loader.loader.loader import SwiftLoader
from swift_loader.order.part import Taken
from swift_loader.order.planned import PlannedOrder
from swift_loader.order.told import inner_of
from swift_loader.transport.slots import OnMap

__all__ = ["hand_on", "size_of", "state_at"]


def hand_on(loader: SwiftLoader, on_map: OnMap) -> bool:
    """Have batches delivered as they lie in their slots.

    Each is then ``(skeleton, base)``, the arguments of `swift_loader.batch.codec.decode`, and
    `on_map` learns of every slot's region. Call it before `start()`. False, and nothing is changed,
    where that can't be: the loader was started, has a codec of the user's, or is one of several
    consumers.
    """
    config = loader._config
    if (
        config.in_process
        or loader.started
        or config.batch_decoder is not None
        or config.nb_consumer > 1
    ):
        return False
    loader._hand_on = on_map
    return True


def size_of(loader: SwiftLoader, epoch: int, first_batch: int = 0) -> tuple[int, int]:
    """``(batches, samples)`` of this consumer in an epoch, from batch `first_batch` on.

    In the epoch that a loaded state stands in, what was delivered before doesn't count. Raises
    `ClosedError` where that can't be told: a stream, a sampler.
    """
    return _planned(loader).size_of(epoch, first_batch)


def state_at(loader: SwiftLoader, epoch: int, first_batch: int) -> dict[str, Any]:
    """The state of a loader that has delivered all batches before `first_batch` of `epoch`.

    Raises `ClosedError` where that can't be told: batches out of order, a stream, a sampler.
    """
    if not loader._config.in_order:
        raise ClosedError("with in_order=False, only state_dict() knows what was delivered")
    _planned(loader)
    order = loader._the_order()
    taken = Taken(order.part(epoch))
    taken.first = max(first_batch, taken.first)
    taken.beyond = {k for k in taken.beyond if k >= taken.first}
    return order.capture(taken)


def _planned(loader: SwiftLoader) -> PlannedOrder:
    order = inner_of(loader._the_order())
    if not isinstance(order, PlannedOrder):
        raise ClosedError("a loader of a stream or with a sampler of yours can't tell sizes")
    return order
