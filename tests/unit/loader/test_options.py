"""An option stands once: what repeats its definition says the same."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

from swift_loader import SwiftLoader
from swift_loader.loader.names import ALIASES
from swift_loader.loader.options import Config, definitions
from swift_loader.loader.signature import AllOptions, Typed

ROOT = Path(__file__).parents[3]


def test_type_checkers_are_told_every_option() -> None:
    told = {
        name: annotation.__forward_arg__ for name, annotation in AllOptions.__annotations__.items()
    }
    defined = {one.name: one.type.replace('"', "'") for one in definitions()}
    others = {alias.name: alias.type for alias in ALIASES.values()}
    first = {name: defined.pop(name) for name in ("dataset_class", "dataset_kwargs")}
    short = {
        "Workers": "int | Literal['auto']",
        "Collate[Any] | None": "Callable[[list[Any]], Any] | None",
        "Transform": "Callable[[Any], Any] | None",
        "Decoder[Any] | None": "Callable[[bytes], Any] | None",
    }
    told = {name: short.get(text, text.replace('"', "'")) for name, text in told.items()}
    assert told | first | {"dataset": "Any"} == defined | others | first
    with_overload = inspect.getsource(Typed).split("@overload")[1:-1]
    names = set(first) - {"dataset_class"} | {"dataset", "batch_size", "shuffle"}
    for overload in with_overload:
        assert all(f"{name}: " in overload for name in names), overload


def test_help_shows_every_option_with_its_default() -> None:
    parameters = dict(inspect.signature(SwiftLoader).parameters)
    for alias in ALIASES:
        assert parameters.pop(alias).default is None
    shown = {name: (one.annotation, one.default) for name, one in parameters.items()}
    assert shown == {one.name: (one.type, one.default) for one in definitions()}
    assert list(parameters)[:6] == [
        "dataset_class", "dataset_kwargs", "batch_size", "nb_consumer", "worker_per_consumer",
        "shuffle",
    ]  # fmt: skip
    of_dataset = list(inspect.signature(SwiftLoader.from_dataset).parameters)
    assert of_dataset[:5] == [
        "dataset", "batch_size", "nb_consumer", "worker_per_consumer", "shuffle"
    ]  # fmt: skip


def test_readme_has_the_table_of_now() -> None:
    command = [sys.executable, "scripts/options_table.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_help_tells_every_option() -> None:
    text = inspect.getdoc(SwiftLoader)
    assert text is not None
    for one in definitions():
        assert f"\n{one.name}: {one.type}\n" in text


def test_defaults_that_depend_on_others_are_filled_in() -> None:
    config = Config.of({"dataset_class": list, "batch_size": 4, "worker_per_consumer": 8})
    assert config.nearby_shuffle == 8192
    assert config.data_queue_size == 16
    assert config.queue_grows
    assert config.max_buffer_size == 2
