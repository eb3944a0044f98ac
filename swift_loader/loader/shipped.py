"""The user's things as workers are given them: shipped when the loader is built, for its trial.

What the script changes in them until it starts the loader, workers see, as torch's do. So the
things are packed again at the start, and compared with what lies in the region: that is the only
copy of how they were. Where they are others now, they are shipped anew.
"""

from __future__ import annotations

import os

from swift_loader.batch.identity import main_has
from swift_loader.batch.shipping import Payload, pack, unpack
from swift_loader.errors import ShippingError
from swift_loader.loader.as_built import Settings, settings_of
from swift_loader.transport.memory import filled_region, map_private
from swift_loader.worker.recipe import Recipe, forget_for_forks, given, keep_for_forks, recipe_of
from swift_loader.worker.script import StartMethod, names_in_workers

__all__ = ["Shipped"]

#: Beyond these, packing again and comparing would hold up the start.
_MOST_PICKLED = 32 << 20
_MOST_BYTES = 1 << 30


class Shipped:
    """One region with a recipe in it, of which `fd` is a descriptor.

    `elsewhere`: some workers are on other machines. `settings`: see `as_built`; None as long as
    workers would get what is there when they start. `follows`: whether changes until then reach
    them.
    """

    def __init__(self, recipe: Recipe, method: StartMethod, elsewhere: bool) -> None:
        self._method = method
        self._elsewhere = elsewhere
        self._forked: Recipe | None = None  # kept for processes that are forked from this one
        self.settings: Settings | None = None
        if method == "fork":
            self._forked = recipe
            payload = pack(keep_for_forks(recipe))
        else:
            payload = self._packed(recipe)
            self.settings = _settings_of(recipe)
        self._lay(payload)
        self.follows = recipe.dataset_class is given and (method == "fork" or self._is_small)

    @classmethod
    def like(cls, other: Shipped, follows: bool) -> Shipped:
        """Another holder of the same region, until one of them ships anew.

        `follows`: the script may have changed the data set. What is unpacked from a region can be
        the same and become other bytes when it is packed, so nothing is compared without need.
        """
        made = cls.__new__(cls)
        vars(made).update(vars(other))
        made.fd = os.dup(other.fd)
        made._kept = list(other._kept)
        made.follows = other.follows and follows
        return made

    def recipe(self) -> Recipe:
        """As a worker gets it, arrays as views over the region."""
        return recipe_of(unpack(memoryview(map_private(self.fd, self._nbytes))))

    def has(self, recipe: Recipe) -> bool | None:
        """Whether workers would get `recipe` from the region; None where nobody can tell, as it
        can't be packed any more.
        """
        if self._forked is not None:
            return True
        payload = self._packed_again(recipe)
        if payload is None:
            return None
        return payload.lies_in(map_private(self.fd, self._nbytes))

    def anew(self, recipe: Recipe) -> None:
        """Ship `recipe` in place of what was shipped."""
        payload = self._packed_again(recipe)
        if payload is not None:
            before = self.fd
            self._lay(payload)
            os.close(before)

    def close(self) -> None:
        """Let the region go."""
        os.close(self.fd)
        self._kept.clear()
        if self._forked is not None:
            forget_for_forks(self._forked)

    def _lay(self, payload: Payload) -> None:
        self.fd = filled_region(payload.nbytes, "dataset", payload.write)
        self._nbytes = payload.nbytes
        self._kept = payload.kept
        self._is_small = payload.pickle_bytes <= _MOST_PICKLED and payload.nbytes <= _MOST_BYTES

    def _packed(self, recipe: Recipe) -> Payload:
        # Endpoints and Ray have no script to import.
        by_name = () if self._elsewhere else names_in_workers(self._method)
        with main_has(by_name):
            return pack(vars(recipe), elsewhere=self._elsewhere)

    def _packed_again(self, recipe: Recipe) -> Payload | None:
        try:
            return self._packed(recipe)
        except ShippingError:
            return None


def _settings_of(recipe: Recipe) -> Settings:
    built = recipe.dataset_kwargs["dataset"] if recipe.dataset_class is given else None
    return settings_of(built, recipe.transform, recipe.collate_fn)
