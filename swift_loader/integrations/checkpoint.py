"""A `SwiftLoader` in checkpoints that keep one value for all ranks.

```python
import torch.distributed.checkpoint as dcp

parts = {"model": model, "loader": for_checkpoint(loader)}
dcp.save(parts, checkpoint_id="step-1000")
```

`torch.distributed.checkpoint` keeps what one rank says under a name. Of a stream, and with a
sampler, each consumer has a state of its own, so here each rank says those of all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch.distributed

from swift_loader.errors import StateError
from swift_loader.loader.loader import SwiftLoader
from swift_loader.ranks.agreement import of_all_ranks

__all__ = ["Checkpointed", "for_checkpoint", "states_of_all"]

_FIELD = "consumers"


def states_of_all(loader: SwiftLoader[Any]) -> list[dict[str, Any]]:
    """The states of all consumers, in their order: what ``loader.load_state_dict`` takes.

    Collective: with `torch.distributed` initialised, each rank of the default process group must
    call it. Ranks that share a consumer (those of a mesh) count once.
    """
    mine = loader.state_dict()
    is_up = torch.distributed.is_available() and torch.distributed.is_initialized()
    by_consumer = {each["consumer"]: each for each in (of_all_ranks(mine) if is_up else [mine])}
    return [by_consumer[consumer] for consumer in sorted(by_consumer)]


class Checkpointed:
    """The states of all consumers of a loader, as a `Stateful` of torch's. See `for_checkpoint`."""

    def __init__(self, loader: SwiftLoader[Any]) -> None:
        self._loader = loader

    def state_dict(self) -> dict[str, Any]:
        """All states as one text. Collective, as `states_of_all` is."""
        return {_FIELD: json.dumps(states_of_all(self._loader))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the states were taken. An empty `state`, as of no checkpoint, does nothing.

        Raises `StateError` as ``loader.load_state_dict`` does.
        """
        if not state:
            return
        try:
            states = json.loads(state[_FIELD])
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"the state is malformed: it has no {_FIELD!r}, as for_checkpoint(loader) writes "
                f"them ({error!r:.100})"
            ) from None
        alone = isinstance(states, list) and len(states) == 1
        self._loader.load_state_dict(states[0] if alone else states)


def for_checkpoint(loader: SwiftLoader[Any]) -> Checkpointed:
    """What stands for `loader` in `torch.distributed.checkpoint` and in torchtitan.

    Save and load it on all ranks; load it before ``loader.start()``. The number of ranks may differ
    then as `load_state_dict` says: streams with a state of their own and samplers need the same
    number, all else may go on with any.
    """
    return Checkpointed(loader)
