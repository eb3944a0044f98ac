"""Mutated frames, messages, states, key files and benchmark files: refused plainly, or valid."""

from __future__ import annotations

import copy
import json
import random
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from swift_loader.errors import ConfigError, StateError
from swift_loader.report.page import html_page
from swift_loader.report.runs import read_runs
from swift_loader.report.terminal import terminal_text
from swift_loader.telemetry.metrics import BatchTimes, Meter
from swift_loader.telemetry.monitor import open_benchmark
from tests.chaos.seeds import rounds

ODD: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**63, 2**64, 10**400, 0.5, -0.0, 1e308, float("inf"),
    float("-inf"), float("nan"), "", "x", "\x1b[2J", "\ud800", [], [0], [[0, 1]], {}, {"a": 1},
]  # fmt: skip


def mutated_bytes(data: bytes, draw: random.Random) -> bytes:
    """Some bytes changed, left out, put in, or all cut short."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(changed) + 1)
        how = draw.choice(["flip", "set", "cut", "insert", "swap"])
        if how == "insert":
            changed[at:at] = draw.randbytes(draw.randint(1, 9))
        elif how == "cut":
            del changed[at : at + draw.randint(1, 9)]
        elif how == "swap":
            changed = changed[at:] + changed[:at]
        elif at < len(changed):
            changed[at] = (
                changed[at] ^ 1 << draw.randrange(8) if how == "flip" else draw.choice(_SIGNS)
            )
    return bytes(changed[: draw.randrange(len(changed) + 1)] if draw.random() < 0.2 else changed)


_SIGNS = b'\0\xff\x80 019-.eE"[]{},:\n'


def mutated(value: Any, draw: random.Random) -> Any:
    """Another value somewhere in a nested one, or a key too many or too few."""
    value = copy.deepcopy(value)
    inside: list[Any] = [value]
    for one in inside:
        parts = one.values() if isinstance(one, dict) else one
        inside += [part for part in parts if isinstance(part, (dict, list)) and part]
    one = draw.choice(inside)
    keys = list(one) if isinstance(one, dict) else list(range(len(one)))
    key = draw.choice(keys)
    how = draw.choice(["other", "other", "other", "none", "extra"])
    if how == "none":
        del one[key]
    elif how == "extra" and isinstance(one, dict):
        one[draw.choice(["", "extra", "seed"])] = draw.choice(ODD)
    else:
        one[key] = draw.choice(ODD)
    return value


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    """What asks for more than there may be fails, and the machine does not suffer from it."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    most_bytes = psutil.Process().memory_info().vms + (3 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


# ---- benchmark files


def benchmark_lines(path: Path) -> list[str]:
    """A real file of one run with all kinds of lines."""
    meter = Meter(0)
    now_s = 1000.0
    writer = open_benchmark(meter, path=path, logger=None, plan={"n": 3}, options={"a": "b"})
    meter.worker_started(0, None)
    for epoch in range(3):
        meter.epoch_begins(epoch, now_s)
        for k in range(30):
            now_s += 0.3
            meter.add(BatchTimes(0, epoch, k, 3, 100, 0.1, 0.01, 0.01, 0.001, 0.0, 0.05, 2, now_s))
        meter.skipped(7, "why")
        meter.worker_restarted(0, None, "died")
        meter.epoch_ends(now_s)
    writer.close()
    return path.read_text().splitlines()


def reports(path: Path) -> None:
    """Both forms are drawn, whatever the file says; without codes for a terminal."""
    runs, passed_over = read_runs([path])
    text = terminal_text(runs, passed_over)
    assert "\x1b" not in text
    assert html_page(runs, passed_over)


def mutated_benchmarks(folder: Path, seed: int, count: int) -> None:
    lines = benchmark_lines(folder / "sound")
    draw = random.Random(seed)
    path = folder / "changed"
    for i in range(count):
        changed = list(lines)
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(len(changed))
            if draw.random() < 0.7:
                try:
                    changed[at] = json.dumps(mutated(json.loads(changed[at]), draw))
                except (ValueError, TypeError, AttributeError):
                    continue  # it was changed before
            else:
                line = mutated_bytes(changed[at].encode("utf8", "replace"), draw)
                changed[at] = line.decode("utf8", "replace")
        path.write_text("\n".join(changed), encoding="utf8", errors="replace")
        try:
            reports(path)
        except Exception:
            print(f"number {i}:\n" + "\n".join(set(changed) - set(lines)))
            raise


def test_mutated_benchmark_files_are_reported(tmp_path: Path) -> None:
    mutated_benchmarks(tmp_path, seed=1, count=60)


def test_figures_that_are_no_numbers_are_drawn(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in benchmark_lines(tmp_path / "sound")]
    for odd in (float("nan"), float("inf"), 1e308, -1e308):
        for name in ("wait_s", "batches", "samples", "consumer_cpu", "elapsed_s", "queue_depth"):
            changed = [{**line, name: odd} if name in line else line for line in lines]
            path = tmp_path / "changed"
            path.write_text("\n".join(map(json.dumps, changed)))
            reports(path)


# ---- states


def states() -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    """Of each kind: one that a run wrote, and what reads it."""
    from tests.unit.order.test_state import ORDERS, taken

    return {
        kind: (taken(order, 3, [0, 1, 3]), lambda state, order=order: order.resumed(state))
        for kind, order in ORDERS.items()
    }


def mutated_states(seed: int, count: int) -> None:
    draw = random.Random(seed)
    for kind, (state, resume) in states().items():
        resume(state)
        for _ in range(count):
            changed = mutated(state, draw)
            try:
                resume(changed)
            except StateError:
                continue
            except Exception:
                print(kind, changed)
                raise


def mutated_states_of_mixtures(seed: int, count: int) -> None:
    """A loop goes on from those that are accepted, as the same mixture and as another one."""
    from tests.unit.order.mixed import KINDS, goes_on, readers, states

    draw = random.Random(seed)
    for kind in KINDS:
        written, loaders = states(kind), readers(kind)
        nb_accepted = 0
        for _ in range(count):
            changed = mutated(draw.choice(written), draw)
            try:
                nb_accepted += goes_on(draw.choice(loaders), changed)
            except Exception:
                print(kind, changed)
                raise
        assert nb_accepted < count / 2


def test_mutated_states_are_refused_by_name() -> None:
    mutated_states(seed=1, count=400)


def test_mutated_states_of_mixtures_are_refused_or_a_loop_goes_on_from_them() -> None:
    mutated_states_of_mixtures(seed=1, count=200)


# ---- frames and messages of the network


def mutated_frames(seed: int, count: int) -> None:
    pytest.importorskip("zmq")
    from swift_loader.remote.frames import bundled, checked, pack_frames, sealed, unpack_frames
    from swift_loader.remote.messages import DamagedError, FrameError
    from tests.unit.remote.test_frames import MESSAGES

    draw = random.Random(seed)
    for _ in range(count):
        run = [bytes(f) for m in draw.sample(MESSAGES, 3) for f in pack_frames(m)]
        frames = [bytes(frame) for frame in (bundled(run) if draw.random() < 0.5 else run)]
        at = draw.randrange(len(frames))
        sent = [bytes(frame) for frame in sealed(frames)]
        damaged = [*sent[:at], mutated_bytes(sent[at], draw), *sent[at + 1 :]]
        if damaged != sent:
            with pytest.raises(DamagedError):
                checked(damaged)
        frames[at] = mutated_bytes(frames[at], draw)
        try:
            for message in unpack_frames(frames):
                repr(message)
        except FrameError:
            continue


def test_mutated_frames_are_refused_or_valid() -> None:
    mutated_frames(seed=1, count=1500)


# ---- key files


def mutated_keys(folder: Path, seed: int, count: int) -> None:
    pytest.importorskip("zmq")
    from swift_loader.remote.keys import Keys, load_keys

    draw = random.Random(seed)
    path = folder / "key"
    Keys.generate().write(path)
    sound = path.read_bytes()
    secrets = [part.decode() for part in sound.splitlines()[-1].split()[2::2]]
    for _ in range(count):
        path.write_bytes(mutated_bytes(sound, draw))
        try:
            load_keys(path)
        except ConfigError as error:
            told = str(error)
            assert not any(secret[:10] in told for secret in secrets)


def test_mutated_key_files_are_refused_and_not_shown(tmp_path: Path) -> None:
    mutated_keys(tmp_path, seed=1, count=500)


# ---- all of them, for long


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_ten_thousand_of_each_for_long(tmp_path: Path) -> None:
    for seed in rounds(10):
        mutated_frames(seed, 1000)
        mutated_states(seed, 1000)
        mutated_states_of_mixtures(seed, 1000)
        folder = tmp_path / str(seed)
        folder.mkdir()
        mutated_keys(folder, seed, 1000)
        mutated_benchmarks(folder, seed, 1000)
