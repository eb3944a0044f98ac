"""The table and the loader's name of `swift-loader share`."""

from __future__ import annotations

from pathlib import Path

import pytest

from swift_loader.errors import ConfigError
from swift_loader.sharing.command import in_one_line, load, table
from swift_loader.sharing.producer import ConsumerView


def test_the_table_shows_everybody_and_where_they_are() -> None:
    views = [
        ConsumerView("train.py (process 12)", 12, "active", 3, 41, 2, 100, 9.0),
        ConsumerView("b.py (process 7)", 7, "waiting", 0, 0, 0, 0, 1.0),
    ]
    assert table(views, {12: 10.04}) == [
        "consumer               state    epoch  batch  behind  batches/s",
        "train.py (process 12)  active       3     41       2       10.0",
        "b.py (process 7)       waiting      0      0       0        0.0",
    ]
    assert table([], {}) == ["no consumer is connected"]
    assert in_one_line(views, {12: 10.04}) == (
        "train.py (process 12) active, epoch 3 batch 41, 10.0/s; "
        "b.py (process 7) waiting, epoch 0 batch 0, 0.0/s"
    )
    assert in_one_line([], {}) == "no consumer is connected"


def test_a_module_of_the_current_directory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_shared_data.py").write_text("def make_loader():\n    return [1, 2]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load("my_shared_data:make_loader")() == [1, 2]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("my_data", "must be module:callable"),
        ("no_such_module:make", "can't be found"),
        ("os:no_such_name", "can't be found"),
        ("os:name", "is a str"),
        ("torch.utils.data:TensorDataset.__getitem__", "without arguments"),
    ],
)
def test_what_is_no_callable_is_refused_with_the_reason(spec: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        load(spec)
