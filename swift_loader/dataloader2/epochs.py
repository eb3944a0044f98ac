"""Which epoch a loader is in, with which seeds, and how far. Books only; nothing is iterated here.

An epoch is named by a base seed and a number; its seeds are a function of both. The base is what
`seed` was given, or else drawn from torch's global generator: at the first epoch, and at the first
one after a `torch.manual_seed` or `torch.set_rng_state`.
"""

from __future__ import annotations

import pickle
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from swift_loader.dataloader2.graph import clone
from swift_loader.dataloader2.random import SeedGenerator, epoch_seed, torch_is_fresh, torch_seed

__all__ = ["EpochState", "Epochs"]


@dataclass(frozen=True)
class EpochState:
    """How far an epoch is. `finished`: its end was reached."""

    base_seed: int
    epoch: int
    nb_yielded: int = 0
    finished: bool = False


class Epochs:
    """The books of one loader.

    `generator` is that of the current epoch (services change it), `initial_generator` what it was
    at the epoch's start. `nb_yielded`: how many items of the epoch were handed out.
    """

    def __init__(self) -> None:
        self.generator = SeedGenerator()
        self.initial_generator = clone(self.generator)
        self.nb_yielded = 0
        self._seed: int | None = None
        self._torch_seed: int | None = None  # as of the last epoch's start
        self._began_at: set[int] = set()  # where torch's generator stood, since it was set anew
        self._seed_is_new = True  # it is still to be used
        self._seeded_since_load = False
        self._current: EpochState | None = None  # as of its start, or of its end
        self._to_resume: EpochState | None = None

    def seed(self, seed: int) -> None:
        """See `DataLoader2.seed`."""
        if seed >= 2**64:
            raise ValueError(f"Expected a uint64 seed (below 2**64), but got {seed}.")
        self._seed = seed
        self._seed_is_new = self._seeded_since_load = True

    def begin(self) -> int:
        """An epoch begins, its seeds in `generator`. Returns how many of its items to pass over."""
        resumed, self._to_resume = self._to_resume, None
        seeded, self._seeded_since_load = self._seeded_since_load, False
        if resumed is not None and not (seeded and self._is_for_another(resumed)):
            self._seed_is_new = self._seed_is_new and not seeded
            self._current = resumed
        if resumed is not None and self._current is resumed and not resumed.finished:
            self.generator = clone(self.initial_generator)
        else:
            self._current = self._next(may_follow_torch=resumed is None)
            self.generator.seed(epoch_seed(self._current.base_seed, self._current.epoch))
        self.initial_generator = clone(self.generator)
        self.nb_yielded = self._current.nb_yielded
        return self.nb_yielded

    def _next(self, *, may_follow_torch: bool) -> EpochState:
        if self._seed is None and self._torch_was_seeded() and may_follow_torch:
            self._seed_is_new = True
        following = torch_seed()
        if self._seed is None:
            torch.empty((), dtype=torch.int64).random_()  # as torch; see `_torch_was_seeded`
        if self._seed_is_new or self._current is None:
            self._seed_is_new = False
            return EpochState(following if self._seed is None else self._seed, 0)
        return EpochState(self._current.base_seed, self._current.epoch + 1)

    def _torch_was_seeded(self) -> bool:
        """Was torch's generator set anew since the last epoch began?

        Told by the generator: it has another seed, or nothing was drawn since, or it stands where
        an epoch began before, though each one draws from it.
        """
        before, self._torch_seed = self._torch_seed, torch.initial_seed()
        stands = hash(torch.get_rng_state().numpy().tobytes())
        anew = before != self._torch_seed or torch_is_fresh() or stands in self._began_at
        self._began_at = {stands} if anew else {stands, *self._began_at}
        return anew and before is not None

    def _is_for_another(self, resumed: EpochState) -> bool:
        return resumed.finished or (self._seed, 0) != (resumed.base_seed, resumed.epoch)

    def end(self) -> None:
        """The end of the epoch was reached."""
        current = self.position()
        assert current is not None, "no epoch has begun"
        self._current = replace(current, finished=True)

    def restart(self) -> None:
        """Let the next epoch be the current one, or that of a loaded state, from its start."""
        current = self._to_resume or self._current
        if current is not None:
            self.generator = clone(self.initial_generator)
            self._to_resume = EpochState(current.base_seed, current.epoch)

    def position(self) -> EpochState | None:
        """Where the loader stands; `None` before its first epoch."""
        return self._current and replace(self._current, nb_yielded=self.nb_yielded)

    def state(self) -> dict[str, Any]:
        """The parts of `DataLoader2.state_dict` that are kept here."""
        position = self.position()
        return {
            "randomness_state": (
                self._seed,
                self._seed_is_new,
                pickle.dumps(self.generator),
                pickle.dumps(self.initial_generator),
            ),
            "epoch_state": None if position is None else asdict(position),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on where a state was taken. Parts that it lacks stay as they are."""
        if "randomness_state" in state:
            self._seed, self._seed_is_new, current, initial = state["randomness_state"]
            self.generator = pickle.loads(current)
            self.initial_generator = pickle.loads(initial)
        if state.get("epoch_state") is not None:
            self._to_resume = EpochState(**state["epoch_state"])
        self._seeded_since_load = False
