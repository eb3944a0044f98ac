"""Handlers of the root logger, as a worker makes them again."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterator
from logging.handlers import RotatingFileHandler
from pathlib import Path

import pytest

from swift_loader.worker.logging_settings import apply_logging, read_logging
from swift_loader.worker.script import state


@pytest.fixture(autouse=True)
def root() -> Iterator[logging.Logger]:
    root = logging.root
    before, level = list(root.handlers), root.level
    root.handlers.clear()
    yield root
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = before
    root.setLevel(level)


def in_worker(*handlers: logging.Handler, made_by_import: list[logging.Handler]) -> None:
    """The root logger has, from now on, what a worker makes of these."""
    logging.root.handlers[:] = handlers
    found = read_logging(logging)
    logging.root.handlers[:] = made_by_import
    apply_logging(logging, found)


def test_a_file_is_gone_on_with(root: logging.Logger, tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    rotating = RotatingFileHandler(path, mode="w", maxBytes=1000, backupCount=2)
    rotating.setLevel(logging.ERROR)
    rotating.setFormatter(logging.Formatter("here: %(message)s"))
    root.addHandler(rotating)
    logging.error("first")
    in_worker(rotating, made_by_import=[])
    (made,) = root.handlers
    assert isinstance(made, RotatingFileHandler)
    assert made is not rotating
    logging.error("second")
    logging.warning("too low")
    rotating.close()
    assert path.read_text() == "here: first\nhere: second\n"
    assert made.backupCount == 2


def test_a_file_that_is_opened_late_is_opened_late(root: logging.Logger, tmp_path: Path) -> None:
    in_worker(logging.FileHandler(tmp_path / "log.txt", delay=True), made_by_import=[])
    assert not list(tmp_path.iterdir())
    logging.error("now")
    assert (tmp_path / "log.txt").read_text() == "now\n"


def test_standard_streams_are_those_of_the_worker(root: logging.Logger) -> None:
    in_worker(logging.StreamHandler(sys.stdout), logging.StreamHandler(), made_by_import=[])
    streams = [getattr(handler, "stream", None) for handler in root.handlers]
    assert streams == [sys.stdout, sys.stderr]


def test_handlers_that_say_nothing_are_not_worth_an_import(root: logging.Logger) -> None:
    class Silent(logging.NullHandler):
        pass

    in_worker(Silent(), logging.FileHandler(os.devnull), made_by_import=[])
    assert [type(handler) for handler in root.handlers] == [logging.NullHandler]


def test_a_handler_that_cannot_travel_stays_where_the_import_made_one(
    root: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory = logging.StreamHandler(io.StringIO())
    own, other = logging.StreamHandler(io.StringIO()), logging.Handler()
    in_worker(in_memory, made_by_import=[])
    assert root.handlers == []
    monkeypatch.setattr(state, "imported", True)
    in_worker(in_memory, made_by_import=[own, other])
    assert root.handlers == [own]


def test_handlers_that_no_script_made_are_kept(root: logging.Logger) -> None:
    """Those of Ray, or of the process that a worker was forked from."""
    own = logging.StreamHandler(io.StringIO())
    in_worker(logging.StreamHandler(), made_by_import=[own])
    assert root.handlers == [own]


def test_a_handler_whose_file_cannot_be_opened_is_named(
    root: logging.Logger, tmp_path: Path
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    handler = logging.FileHandler(folder / "log.txt")
    (folder / "log.txt").unlink()
    folder.rmdir()
    with pytest.warns(UserWarning, match=r"a handler of the root logger, logging\.FileHandler"):
        in_worker(handler, made_by_import=[])
    handler.close()
    assert root.handlers == []


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("some_training.part")
    yield logger
    for handler in logger.handlers:
        handler.close()
    logger.handlers.clear()
    logger.propagate = True


def test_a_loggers_handlers_are_those_of_the_training_process(
    logger: logging.Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger.addHandler(logging.FileHandler(tmp_path / "log.txt"))
    logger.propagate = False
    found = read_logging(logging)
    logger.handlers[:] = [logging.StreamHandler()]  # as the script's import has made it
    logger.propagate = True
    monkeypatch.setattr(state, "imported", True)
    apply_logging(logging, found)
    assert [type(handler) for handler in logger.handlers] == [logging.FileHandler]
    assert not logger.propagate


def test_a_module_that_is_not_imported_yet_adds_its_handlers_itself(
    logger: logging.Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "some_training", pytest)
    logger.addHandler(logging.FileHandler(tmp_path / "log.txt"))
    found = read_logging(logging)
    logger.handlers.clear()
    monkeypatch.delitem(sys.modules, "some_training")
    apply_logging(logging, found)
    assert not logger.handlers


def test_of_an_installed_library_files_alone_are_carried_beside_its_own_handlers(
    tmp_path: Path,
) -> None:
    logger = logging.getLogger("dill.of_a_test")
    own = logging.StreamHandler()
    logger.handlers[:] = [own, logging.FileHandler(tmp_path / "log.txt")]
    found = read_logging(logging)
    logger.handlers.pop().close()
    apply_logging(logging, found)
    assert [type(handler) for handler in logger.handlers] == [
        logging.FileHandler,
        logging.StreamHandler,
    ]
    assert logger.handlers.pop() is own
    logger.handlers.pop().close()
