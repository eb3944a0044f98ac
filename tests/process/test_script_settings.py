"""Filters and handlers that a script makes, of classes of its own: as in torch's forked workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.process.scripts import printed_by

pytestmark = pytest.mark.usefixtures("nothing_left")

COMMON = """
import json, logging, os, sys, threading, warnings
from torch.utils.data import DataLoader
from swift_loader import SwiftLoader

root = logging.getLogger()


class Mine(UserWarning):
    pass


class CannotTravel(UserWarning):
    held = threading.Lock()


class Loud(logging.Formatter):
    def format(self, record):
        return super().format(record).upper()


class Even(logging.Filter):
    def filter(self, record):
        return record.args[0] % 2 == 0


class Lines(logging.Handler):
    def __init__(self, path):
        super().__init__()
        self.path = path

    def emit(self, record):
        with open(self.path, "a") as file:
            file.write(self.format(record) + chr(10))


class Locked(Lines):
    def __init__(self, path):
        super().__init__(path)
        self.held = threading.Lock()


class Speaks:
    def __len__(self):
        return 4

    def __getitem__(self, i):
        logging.info("sample %d", i)
        warnings.warn("mine", Mine)
        return i


def written():
    found = {}
    for name in sorted(os.listdir()):
        if name.endswith(".txt"):
            with open(name) as file:
                found[name] = file.read().split(chr(10))
            os.truncate(name, 0)
    return found


def both(**more):
    options = {"batch_size": 2, "num_workers": 1, "shuffle": False}
    with SwiftLoader(Speaks(), validate=False, prefetch_epochs=0, **options, **more) as loader:
        list(loader)
    ours = written()
    list(DataLoader(Speaks(), multiprocessing_context="fork", **options))
    print(json.dumps([ours, written()]))
"""

UNGUARDED = """
warnings.filterwarnings("ignore", category=CannotTravel)
warnings.filterwarnings("ignore", category=Mine)
root.setLevel(logging.INFO)
stream = logging.FileHandler("stream.txt", "w")
stream.setFormatter(Loud())
stream.addFilter(Even())
for handler in (stream, Lines("lines.txt")):
    root.addHandler(handler)
both()
"""

GUARDED = """
logging.basicConfig(filename="top.txt", format="top %(message)s", level=logging.INFO)
root.addHandler(Locked("locked.txt"))
root.addHandler(Lines("removed.txt"))
warnings.filterwarnings("ignore", category=CannotTravel)
if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=Mine)
    root.removeHandler(root.handlers[-1])
    root.handlers[0].setFormatter(Loud("changed %(message)s"))
    root.addHandler(logging.FileHandler("below.txt"))

    class Below(Lines):
        pass

    root.addHandler(Below("class_below.txt"))
    both(start_method=sys.argv[1])
"""


def run_both(tmp_path: Path, text: str, *arguments: str) -> tuple[dict[str, list[str]], str]:
    """What the workers wrote, the same with torch's; and what they printed."""
    printed, warned = printed_by(COMMON + text, tmp_path, *arguments, warns=True)
    ours, torchs = json.loads(printed)
    assert ours == torchs
    return ours, warned


@pytest.mark.timeout(120)
def test_settings_with_classes_of_a_script_without_guard_travel_by_value(tmp_path: Path) -> None:
    written, printed = run_both(tmp_path, UNGUARDED)
    assert written["stream.txt"] == ["SAMPLE 0", "SAMPLE 2", ""]
    assert len(written["lines.txt"]) == 5
    assert "Mine" not in printed
    assert "a filter of warnings, of the category __main__.CannotTravel" in printed


@pytest.mark.timeout(120)
@pytest.mark.parametrize("method", ["main", pytest.param("fork", marks=pytest.mark.soak)])
def test_handlers_are_those_of_the_training_process(method: str, tmp_path: Path) -> None:
    written, printed = run_both(tmp_path, GUARDED, method)
    assert written["top.txt"] == [*(f"CHANGED SAMPLE {i}" for i in range(4)), ""]
    written_by = ("below.txt", "class_below.txt", "locked.txt", "top.txt")
    assert {name: len(lines) for name, lines in written.items()} == dict.fromkeys(written_by, 5)
    assert not printed
