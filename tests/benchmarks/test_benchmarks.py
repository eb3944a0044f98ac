"""The benchmarks run: what they measure is for them to say, that they can is for the tests."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import fresh, limit, measure, table, throughput
from benchmarks.contestants import BARE, LIMIT, OURS, TORCH
from benchmarks.datasets import Rows, Text
from benchmarks.figures import Figure
from benchmarks.rounds import Rounds
from benchmarks.spread import Spread, ratios
from benchmarks.workloads import Workload

_SHORT = Workload("tiny", Rows, 8, warm_s=0.0, window_s=0.05)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("contestant", [OURS, TORCH, BARE, LIMIT])
def test_a_run_takes_batches_for_its_window(contestant: str) -> None:
    answer = fresh.call_from_nothing(
        measure.run, contestant=contestant, workload=_SHORT, nb_worker=1
    )
    assert answer["batches_per_s"] > 0
    assert answer["nb_batch"] >= 1


@pytest.mark.timeout(60)
def test_a_run_that_raises_is_told_with_its_traceback() -> None:
    with pytest.raises(fresh.RunFailedError, match="not enough values to unpack"):
        fresh.call(_raises)


def _raises() -> None:
    _, _ = []


@pytest.mark.timeout(60)
def test_a_run_that_dies_is_told() -> None:
    import os

    with pytest.raises(fresh.RunFailedError, match="ended with 3"):
        fresh.call(os._exit, status=3)


@pytest.mark.timeout(60)
def test_an_interpreter_of_its_own_answers() -> None:
    assert fresh.call_from_nothing(limit.nb_cores, nb_worker=1) == 1


def test_ratios_are_taken_round_by_round() -> None:
    assert ratios([2.0, 40.0, 6.0], [1.0, 10.0, 2.0]) == Spread(2.5, 3.0, 3.5)


def test_the_best_peer_is_the_one_with_the_highest_median() -> None:
    rounds = Rounds(
        {
            OURS: [{"batches_per_s": 30.0}],
            TORCH: [{"batches_per_s": 10.0}],
            "grain": [{"batches_per_s": 20.0}],
            "SPDL, threads": [{"batches_per_s": 25.0}],
        },
        failures={"SPDL, threads": "it broke in a later round"},
    )
    figures = throughput.figures_of("jpeg", rounds)
    assert [(f.what, f.value.median, f.is_met) for f in figures] == [
        (f"batches/s over {TORCH}", 3.0, True),
        ("batches/s over best peer, grain", 1.5, True),
    ]


def test_a_missed_bar_reads_as_missed() -> None:
    figure = Figure("latency", "a trip", Spread(1.0, 2.0, 3.0), bar=1.5)
    assert "NOT MET" in table.figures([figure])
    assert json.loads(json.dumps(figure.to_json()))["is_met"] is False


def test_one_sample_in_a_hundred_is_slow_and_always_the_same() -> None:
    text = Text(slow_every=100)
    slow = [index for index in range(20_000) if text.is_slow(index)]
    assert 150 < len(slow) < 250
    assert slow == [index for index in range(20_000) if Text(slow_every=100).is_slow(index)]


@pytest.mark.timeout(60)
def test_jpegs_are_cut_from_photographs(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("PIL")
    from benchmarks.datasets import Jpegs, cut_jpegs

    cut_jpegs(tmp_path, nb_files=2)
    image, index = Jpegs(str(tmp_path))[5]
    assert (tuple(image.shape), index) == ((3, 224, 224), 5)


@pytest.mark.timeout(60)
def test_whoever_keeps_photographs_gives_them_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("PIL")
    from benchmarks.datasets import cut_jpegs
    from benchmarks.further.cache_rivals import Through, importable
    from benchmarks.further.cached import Photographs

    monkeypatch.setitem(sys.modules, "diskcache", None)
    ways = importable()
    assert "diskcache is left out" in capsys.readouterr().err
    assert "Manager().dict()" in ways
    (tmp_path / "jpegs").mkdir()
    cut_jpegs(tmp_path / "jpegs", nb_files=2)
    photographs = Photographs(str(tmp_path / "jpegs"), 4)
    for number, way in enumerate(ways):
        (tmp_path / str(number)).mkdir()
        through = Through(photographs, way, str(tmp_path / str(number)), {})
        for index in (0, 1, 0, 1):
            image, label = through[index]
            assert label == index
            assert image.equal(photographs[index][0])
