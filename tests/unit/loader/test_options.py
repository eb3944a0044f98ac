"""An option stands once: what repeats its definition says the same."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from swift_loader import ConfigError, SwiftLoader
from swift_loader.loader.names import ALIASES
from swift_loader.loader.options import Config, definitions

ROOT = Path(__file__).parents[3]


def test_signature_repeats_the_definitions() -> None:
    parameters = dict(inspect.signature(SwiftLoader.__init__).parameters)
    del parameters["self"]
    for alias in ALIASES:
        assert parameters.pop(alias).default is None
    in_signature = {
        name: (parameter.annotation, parameter.default) for name, parameter in parameters.items()
    }
    assert in_signature == {
        one.name: (one.type.replace('"', "'"), one.default) for one in definitions()
    }


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


def test_a_name_that_is_no_option_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'worker_per_consumer'"):
        SwiftLoader(list, worker_per_consumers=2)  # type: ignore[call-arg]
