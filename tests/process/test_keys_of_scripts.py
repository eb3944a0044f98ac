"""Keys of a script's own classes, in scripts whose workers have not run it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.scripts import running

KEYS = """
import enum, json, sys, typing
from torch.utils.data import DataLoader
from swift_loader import SwiftLoader

class Key(typing.NamedTuple):
    i: int
    size: int

class Side(enum.IntEnum):
    LEFT = 1
    RIGHT = 2

class Sizes:
    def __getitem__(self, key):
        assert type(key) in (Key, Side) and (type(key) is Side or isinstance(key, Key))
        return repr(key)

def together(samples):
    return list(samples)
"""
LOOP = """
def build(keys):
    return SwiftLoader(Sizes(), batch_size=2, num_workers=2, sampler=keys, collate_fn=together)

keys = [Key(1, 32), Side.LEFT, Key(2, 48), Side.RIGHT, Key(3, 64)]
want = list(DataLoader(Sizes(), batch_size=2, sampler=keys, collate_fn=together))
with build(keys) as loader:
    for epoch in range(2):
        assert list(loader) == want
    iterator = iter(loader)
    next(iterator)
    state = json.dumps(loader.state_dict())
with open(sys.argv[0] + ".state", "w") as file:
    file.write(state)
print("ok", flush=True)
"""
GO_ON = """
keys = [Key(1, 32), Side.LEFT, Key(2, 48), Side.RIGHT, Key(3, 64)]
with SwiftLoader(Sizes(), batch_size=2, sampler=keys, collate_fn=together) as loader:
    with open(sys.argv[0] + ".state") as file:
        loader.load_state_dict(json.load(file))
    got = list(loader)
assert got == [[repr(k) for k in keys[2:4]], [repr(keys[4])]], got
print("ok", flush=True)
"""


def said(script: str, folder: Path) -> str:
    with running(script, folder) as process:
        assert process.stdout is not None
        return process.stdout.readline().strip()


@pytest.mark.parametrize("guarded", [False, True])
def test_keys_of_the_scripts_classes_reach_the_data_set_as_in_torch(
    tmp_path: Path, guarded: bool
) -> None:
    for loop in (LOOP, GO_ON):  # a state knows the keys again in another process
        if guarded:
            loop = 'if __name__ == "__main__":' + loop.replace("\n", "\n    ")
        assert said(KEYS + loop, tmp_path) == "ok"


def test_keys_of_a_class_below_the_guard_reach_the_data_set(tmp_path: Path) -> None:
    script = (KEYS + LOOP).replace("\n", "\n    ")
    assert said('if __name__ == "__main__":' + script, tmp_path) == "ok"
