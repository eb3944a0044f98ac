"""Whether a data set draws from the global random generators: what it draws would freeze."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from swift_loader.batch.fetch import Source
from swift_loader.batch.seeding import generators_drawn_from
from swift_loader.errors import ConfigError

__all__ = ["Watched", "no_draws"]


class Watched:
    """A source that refuses what draws random numbers. `inside`: where samples are kept, if so."""

    def __init__(self, dataset_name: str, inside: Source | None) -> None:
        self._name = dataset_name
        self._inside = inside

    def fetch(self, keys: list[int], make: Callable[[list[int]], list[Any]]) -> list[Any]:
        """The samples of `keys`. Raises `ConfigError`."""

        def watched(keys: list[int]) -> list[Any]:
            with no_draws(self._name):
                return make(keys)

        return watched(keys) if self._inside is None else self._inside.fetch(keys, watched)


@contextmanager
def no_draws(dataset_name: str) -> Iterator[None]:
    """Raises `ConfigError` if what is inside draws from a global random generator."""
    with generators_drawn_from() as drawn:
        yield
    if drawn:
        raise ConfigError(
            f"cache: {dataset_name}[i] draws random numbers from {' and '.join(drawn)}. What it "
            "returns is kept, so each sample would be augmented once, and the same for ever. Move "
            "what is random to transform=, which is called each time that a sample is used"
        )
