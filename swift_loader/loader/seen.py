"""What a loader shows of itself: figures, a bar, and how it looks in a prompt or a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal, overload

from swift_loader.errors import ClosedError
from swift_loader.loader.bar import check_tqdm
from swift_loader.loader.copying import shown
from swift_loader.loader.signature import Batch_co
from swift_loader.ranks.agreement import is_collective, of_all_ranks
from swift_loader.telemetry.figures import flat
from swift_loader.telemetry.html import table
from swift_loader.telemetry.ranks import RanksStats
from swift_loader.telemetry.readings import loader_readings
from swift_loader.telemetry.stats import LoaderStats

if TYPE_CHECKING:
    from swift_loader.loader.engine import Engine
    from swift_loader.loader.options import Config
    from swift_loader.loader.torch_attributes import Dataset

__all__ = ["Seen"]


class Seen(Generic[Batch_co]):
    """A part of `SwiftLoader`."""

    _engine: Engine
    _config: Config
    _dataset: Dataset
    _given: dict[str, Any]

    def __repr__(self) -> str:
        given = "".join(f", {name}={shown(value)}" for name, value in self._given.items())
        return f"<SwiftLoader({self._dataset.name}{given}), {self._state()}>"

    def _repr_html_(self) -> str:
        rows: list[tuple[str, str]] = [("option", "value")]
        rows += [(name, shown(value)) for name, value in self._given.items()]
        told = self._state()
        meter = self._engine.meter
        if meter is not None and meter.totals().batches:
            told += f". {meter.snapshot().verdict}"
        return table(f"SwiftLoader of {self._dataset.name}", told, rows)

    @property
    def started(self) -> bool:
        """Whether `start` was called; it still is after `close`."""
        return self._engine.started

    @overload
    def stats(self, all_ranks: Literal[False] = False) -> LoaderStats: ...

    @overload
    def stats(self, all_ranks: Literal[True]) -> RanksStats: ...

    def stats(self, all_ranks: bool = False) -> LoaderStats | RanksStats:
        """What the loader has done so far. Raises `ClosedError` before `start()`.

        With `all_ranks`, the figures of all consumers, compared. With `torch.distributed`, every
        rank must then call it, at the same place of the script. Every rank gets all figures.
        """
        if self._engine.meter is None:
            raise ClosedError("there are no figures before start()")
        stats = self._engine.stats()
        if not all_ranks:
            return stats
        collective = is_collective(self._config.nb_consumer)
        return RanksStats(tuple(of_all_ranks(stats) if collective else [stats]))

    def metrics(self) -> dict[str, float]:
        """The figures of `stats()` as numbers by name, for the `log` of a framework.

        ``docs/metrics.md`` says what each name means. Raises `ClosedError` before `start()`.
        """
        return flat(loader_readings(self.stats()))

    def progress(self, **options: Any) -> Iterator[Batch_co]:
        """The next epoch, as `iter` gives it, with a bar: ``for batch in loader.progress(): …``.

        `options` are tqdm's. Raises `ConfigError` where tqdm is not installed.
        """
        check_tqdm("progress()")
        return self._iterate(options)

    def _iterate(self, bar: dict[str, Any] | None) -> Iterator[Batch_co]:
        raise NotImplementedError

    def _state(self) -> str:
        if self._engine.closed:
            return "closed"
        return "started" if self._engine.started else "not started"
