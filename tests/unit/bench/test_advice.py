"""What is recommended from measurements, and how it reads."""

from __future__ import annotations

from typing import Any

import pytest

from swift_loader.bench.advice import advise, as_tried, helps, is_busy, waits
from swift_loader.bench.command import Progress, while_more_help
from swift_loader.bench.text import advice_text, heading, row
from swift_loader.bench.trials import Subject, Trial
from swift_loader.telemetry.verdict import STORAGE

ALONE = Trial("dataset alone", 100, 6400, 10.0, 0.1, built_s=0.01, cpu_share=1.0)


def ours(workers: int, rate: float, threads: int = 1, **facts: Any) -> Trial:
    facts = {"bottleneck": "workers: fetch", "batch_nbytes": 1000, "slow_fetch_s": 0.01, **facts}
    return Trial(
        f"{workers} x {threads}", int(10 * rate), int(640 * rate), 10.0, 1.0, workers, threads,
        **facts,
    )  # fmt: skip


def test_fewest_workers_that_are_nearly_the_best() -> None:
    trials = [ours(1, 20), ours(2, 39), ours(4, 41), ours(8, 40)]
    assert advise(ALONE, trials, [], 8, None).worker_per_consumer == 2


def test_fewest_workers_that_keep_up_with_the_step() -> None:
    trials = [ours(1, 20), ours(2, 39), ours(4, 80)]
    advice = advise(ALONE, trials, [], 8, step_s=1 / 30)
    assert (advice.worker_per_consumer, advice.enough) == (2, True)
    assert advice.fix_first == "Nothing: the data keeps up."


def test_training_that_will_wait_is_told_so() -> None:
    advice = advise(ALONE, [ours(1, 20), ours(2, 39)], [], 2, step_s=1 / 100)
    assert (advice.worker_per_consumer, advice.enough) == (2, False)
    assert "training will wait for data" in advice.reasons[0]
    assert "dataset[i]" in advice.fix_first


def test_threads_are_recommended_where_they_pay() -> None:
    alone = Trial("dataset alone", 100, 6400, 10.0, 0.1, cpu_share=0.05)
    assert waits(alone)
    assert not waits(ALONE)
    advice = advise(alone, [ours(1, 10), ours(2, 20), ours(2, 150, threads=8)], [], 2, None)
    assert (advice.worker_per_consumer, advice.threads_per_worker) == (2, 8)
    assert any("threads in a worker pay" in reason for reason in advice.reasons)


def test_threads_that_hardly_pay_are_left_out() -> None:
    trials = [ours(1, 10), ours(2, 20), ours(2, 21, threads=8)]
    assert advise(ALONE, trials, [], 2, None).threads_per_worker == 1


def test_slow_batches_ask_for_a_longer_queue() -> None:
    advice = advise(ALONE, [ours(2, 40, slow_fetch_s=0.5)], [], 2, None)
    assert advice.data_queue_size == 22
    assert any("a queue of 22" in reason for reason in advice.reasons)


def test_data_set_that_is_slow_to_build_is_named() -> None:
    alone = Trial("dataset alone", 100, 6400, 10.0, 20.0, built_s=20.0, cpu_share=1.0)
    reasons = advise(alone, [ours(1, 20)], [], 1, None).reasons
    assert any("takes 20 s to build" in reason for reason in reasons)


def test_rows_stand_below_their_headings() -> None:
    line = row(ours(2, 39))
    assert len(line) == len(heading())
    assert "39.0" in line
    assert "39 kB" in line
    assert "- " in row(ALONE)


def test_text_says_where_the_time_goes_and_what_to_do() -> None:
    trials = [ours(1, 20), ours(2, 39, stages={"fetch": 0.9, "collate": 0.05, "encode": 0.01})]
    text = advice_text(ALONE, trials, advise(ALONE, trials, [ours(2, 13)], 2, None))
    assert "dataset[i]                     90%" in text
    assert "worker_per_consumer=2, threads_per_worker=1, data_queue_size=10" in text
    assert "3 times the best of torch's DataLoader" in text
    assert max(map(len, text.splitlines())) <= 90


def test_time_that_other_processes_took_is_no_waiting() -> None:
    crowded = Trial("dataset alone", 100, 6400, 10.0, 0.1, cpu_share=0.3, starved_share=0.65)
    assert not waits(crowded)
    assert is_busy(1.2, 2)
    assert not is_busy(0.2, 2)


def test_more_threads_are_tried_as_long_as_they_help() -> None:
    assert helps(ours(2, 90, threads=8), ours(2, 20))
    assert not helps(ours(2, 95, threads=16), ours(2, 90, threads=8))


def test_more_workers_than_cpus_are_tried_where_the_data_set_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def waiting(subject: Any, workers: int, threads: int) -> Trial:
        return ours(workers, 10.0 * min(workers, 8) * min(threads, 4), threads)  # batches of 4

    monkeypatch.setattr("swift_loader.bench.command.with_workers", waiting)
    subject = Subject(list, {}, 4, shuffle=False, seconds=1.0)
    tried = while_more_help(Progress(silent=True, nb_trials=0), subject, ours(2, 20), 16)
    ways = [(trial.workers, trial.threads) for trial in tried]
    assert ways == [(2, 8), (2, 16), (4, 8), (8, 8), (16, 8)]
    waits_s = Trial("dataset alone", 100, 6400, 10.0, 0.1, cpu_share=0.05)
    advice = advise(waits_s, [ours(2, 20), *tried], [], 2, None)
    assert (advice.worker_per_consumer, advice.threads_per_worker) == (8, 8)
    assert any("more of them than the 2 CPUs pay" in reason for reason in advice.reasons)


def test_advice_that_was_tried_is_not_given_again() -> None:
    waiting = Trial("dataset alone", 100, 6400, 10.0, 0.1, cpu_share=0.05)
    trials = [ours(2, 20), ours(2, 90, threads=8, bottleneck=STORAGE)]
    assert "threads_per_worker" not in advise(waiting, trials, [], 2, None).fix_first


def test_cpus_of_what_waits_are_not_said_to_be_in_use() -> None:
    waiting = Trial("dataset alone", 100, 6400, 10.0, 0.1, cpu_share=0.05)
    trials = [ours(1, 10), ours(2, 48, threads=8), ours(2, 89, threads=16)]
    advice = advise(waiting, trials, [], 2, None)
    assert advice.threads_per_worker == 16
    assert not any("in use" in reason for reason in advice.reasons)
    assert "89.0 batches/s" in as_tried(advice, trials[-1]).reasons[-1]
