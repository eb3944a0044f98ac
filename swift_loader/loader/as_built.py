"""What a data set was when it was shipped to the workers, as far as that can be told at no cost.

The workers have it as it was when the loader was built. A script that gives it another size before
it starts the loader, as torch's workers would see, is told so.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from swift_loader.worker.recipe import Recipe, given

__all__ = ["settings_of", "warn_if_changed"]

_PLAIN = (bool, int, float, str, type(None))


def settings_of(recipe: Recipe) -> dict[str, Any] | None:
    """The public attributes with a number or a text, of a data set that was given built."""
    return _settings(recipe.dataset_kwargs["dataset"]) if recipe.dataset_class is given else None


def _settings(dataset: Any) -> dict[str, Any]:
    attributes: Mapping[str, Any] = getattr(dataset, "__dict__", {})
    return {
        name: value
        for name, value in attributes.items()
        if type(value) in _PLAIN and not name.startswith("_")
    }


def warn_if_changed(dataset: Any, built: Mapping[str, Any] | None) -> None:
    """Warn of a setting that is another one than in `built`; or in its class, where it is new.

    An epoch is told by the loader. None: the workers have it as it is now.
    """
    if built is None:
        return
    own = {name: value for name, value in vars(type(dataset)).items() if type(value) in _PLAIN}
    was = {**own, **built}
    changed = [
        f"{name} was {was[name]!r:.60}, is now {value!r:.60}"
        for name, value in _settings(dataset).items()
        if name in was and was[name] != value and value == value and "epoch" not in name
    ]
    if changed:
        warnings.warn(
            f"the {type(dataset).__qualname__} was changed after the loader was built "
            f"({', '.join(changed)}), and the workers have it as it was then: change it before you "
            "build the loader, or tell the workers with loader.call_dataset(method, ...)",
            RuntimeWarning,
            stacklevel=4,  # of the line that calls `start()`
        )
