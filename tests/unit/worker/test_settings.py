"""No setting stops a loader: what can't be read or applied is left out."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import pytest

from swift_loader.worker import settings
from swift_loader.worker.settings import Setting, apply_settings, read_settings


def _raise(*_: Any) -> None:
    raise RuntimeError("not now")


def test_a_setting_that_cannot_be_read_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    raises = Setting("raises", "os", _raise, _raise)
    holds_a_lock = Setting("holds a lock", "os", lambda _: pytest, _raise)
    fine = Setting("fine", "os", lambda _: 7, _raise)
    monkeypatch.setattr(settings, "SETTINGS", (raises, holds_a_lock, fine))
    assert read_settings() == {"fine": pickle.dumps(7)}


def test_a_setting_that_cannot_be_applied_is_left_out_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    applied: list[Any] = []
    raises = Setting("raises", "os", lambda _: 7, _raise)
    fine = Setting("fine", "os", lambda _: 8, lambda _, value: applied.append(value))
    monkeypatch.setattr(settings, "SETTINGS", (raises, fine))
    found = read_settings()
    with pytest.warns(UserWarning, match=r"without this setting.*: raises \(not now\)"):
        apply_settings(found)
    assert applied == [8]


def test_a_setting_is_left_out_where_warnings_are_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(settings, "SETTINGS", (Setting("raises", "os", lambda _: 7, _raise),))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apply_settings(read_settings())
    assert "raises (not now)" in capsys.readouterr().err
