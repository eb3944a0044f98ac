"""Sinks that write: a callable, TensorBoard, Weights & Biases, MLflow.

The step of a value is the number of batches that training has got.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from swift_loader.telemetry.figures import PREFIX, Reading, flat
from swift_loader.telemetry.sinks.groups import Group

__all__ = ["Call", "MLflow", "TensorBoard", "WandB", "mlflow_key"]

_STEP = f"{PREFIX}batches_total"


class Call:
    """A callable that gets the flat dict, which doesn't say of which loader."""

    def __init__(self, call: Callable[[dict[str, float]], object]) -> None:
        self._call = call

    def write(self, readings: Sequence[Reading]) -> None:
        self._call(flat(readings))

    def close(self) -> None:
        """Nothing was opened."""


class TensorBoard:
    """A `SummaryWriter`: the user's, or one of ours, which is closed at the end."""

    def __init__(self, writer: Any, place: Hashable, *, own: bool) -> None:
        self._writer = writer
        self._own = own
        self._group = Group(place)

    def write(self, readings: Sequence[Reading]) -> None:
        figures = flat(readings)
        for name, value in figures.items():
            self._writer.add_scalar(_in_group(self._group, name), value, _step(figures))

    def close(self) -> None:
        self._group.close()
        if self._own:
            self._writer.close()
        else:
            self._writer.flush()


class WandB:
    """A run of Weights & Biases.

    Figures join the row of the script's next ``run.log``: a row of their own would move the step
    that the script counts by.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self._group = Group(id(run))

    def write(self, readings: Sequence[Reading]) -> None:
        figures = {_in_group(self._group, name): value for name, value in flat(readings).items()}
        self._run.log(figures, commit=False)

    def close(self) -> None:
        """The run is the user's."""
        self._group.close()


class MLflow:
    """A run of MLflow, by its id: which run is active is a matter of each thread."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._group = Group(("mlflow", run_id))

    def write(self, readings: Sequence[Reading]) -> None:
        import mlflow

        figures = flat(readings)
        named = {
            mlflow_key(f"{self._group.name}_{name.removeprefix(PREFIX)}"): value
            for name, value in figures.items()
        }
        mlflow.log_metrics(named, step=_step(figures), run_id=self._run_id)

    def close(self) -> None:
        """The run is the user's."""
        self._group.close()


def mlflow_key(name: str) -> str:
    """With the characters that MLflow takes."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-. /:") else "_" for c in name)


def _in_group(group: Group, name: str) -> str:
    # One section of its own on the page of TensorBoard and of W&B.
    return f"{group.name}/{name.removeprefix(PREFIX)}"


def _step(figures: Mapping[str, float]) -> int:
    return int(figures.get(_STEP, 0))
