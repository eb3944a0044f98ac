"""A data set as it was before it was told anything, where nothing makes it anew."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from swift_loader.errors import StateError
from swift_loader.sources.mixture import Mixture
from swift_loader.worker.recipe import Recipe, given

__all__ = ["Untouched", "holds_the_object"]


def holds_the_object(recipe: Recipe) -> bool:
    """Whether the recipe holds data sets, and does not build them.

    Built again without being unpacked again, it gives the very objects that were used.
    """
    return recipe.dataset_class is given or isinstance(recipe.dataset_class, Mixture)


class Untouched:
    """Keeps a copy, once."""

    def __init__(self) -> None:
        self._copied: Callable[[], Any] | None = None

    def keep(self, dataset: Any) -> None:
        """Copy `dataset`, which is used, or told something, next."""
        if self._copied is None:
            self._copied = _copied(dataset)

    def instead_of(self, dataset: Any) -> Any:
        """A copy as it was; `dataset`, if none was kept.

        Raises `StateError` where it could not be copied.
        """
        return dataset if self._copied is None else self._copied()


def _copied(dataset: Any) -> Callable[[], Any]:
    """What gives the data set as it is now, any number of times."""
    try:
        untouched = copy.deepcopy(dataset)
    except Exception as error:  # noqa: BLE001 - raised where somebody needs the copy
        why = f"{type(error).__name__}: {error}"

        def refuse_to_copy() -> Any:
            raise StateError(
                f"the {type(dataset).__qualname__} can't be begun anew: it lives on in this "
                f"process, as it was left or told, and can't be copied ({why}). Give its class and "
                "arguments, or workers with start_method='main'"
            )

        return refuse_to_copy
    return lambda: copy.deepcopy(untouched)
