"""`for_accelerate`: accelerate learns of the last batch, as of a loader that it has prepared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import RandomSampler

from swift_loader import ConfigError, SwiftLoader
from tests.datasets import Numbers, Stream

accelerate = pytest.importorskip("accelerate", reason="needs Hugging Face accelerate")

from swift_loader.integrations.accelerate import for_accelerate  # noqa: E402 it needs accelerate

ROOT = Path(__file__).parents[2]
LIMIT_S = 150


def on_ranks(folder: Path, nb_ranks: int) -> list[dict[str, Any]]:
    """What each rank wrote."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    subprocess.run(
        [*torchrun, f"--nproc_per_node={nb_ranks}", "-m", "tests.frameworks.accelerate_run",
         str(folder)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=LIMIT_S,
    )  # fmt: skip
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(nb_ranks)]


@pytest.mark.timeout(LIMIT_S + 10)
@pytest.mark.parametrize("nb_ranks", [1, 2, pytest.param(3, marks=pytest.mark.soak)])
def test_steps_and_what_is_gathered_are_those_of_a_prepared_loader(
    tmp_path: Path, nb_ranks: int
) -> None:
    for rank in on_ranks(tmp_path, nb_ranks):
        for facts in rank["cases"]:
            n, drop_last = facts["case"]
            ours, theirs = facts["ours"], facts["theirs"]
            assert facts["untouched"]
            for what in ("syncs", "lengths"):
                assert ours[what] == theirs[what], (facts["case"], what)
            assert len(ours["gathered"]) == len(theirs["gathered"])
            if not drop_last:
                assert ours["gathered"] == sorted(2 * list(range(n)))
            skipped = facts["ours_skipped"]
            assert skipped["syncs"] == facts["theirs_skipped"]["syncs"]
            assert facts["ours_after"]["syncs"] == facts["theirs_after"]["syncs"]
            # accelerate keeps what is repeated after skipping, of torch's loader too
            rest, repeated = set(skipped["gathered"]), -n % nb_ranks if not drop_last else 0
            assert len(skipped["gathered"]) - len(rest - set(facts["ours_done"])) == repeated
            if not drop_last:
                assert rest | set(facts["ours_done"]) == set(range(n))
        for kind, facts in rank["interrupted"].items():
            whole, rest = facts["whole"], facts["rest"]
            nb_samples = 45 if kind == "numbers" else 48
            assert sorted(whole["gathered"]) == list(range(nb_samples)), kind
            assert facts["done"] + rest["gathered"] == whole["gathered"], kind
            assert rest["syncs"] == whole["syncs"], kind


class Processes:
    """What accelerate tells of itself on one of several processes."""

    device, device_placement = torch.device("cpu"), True
    even_batches, split_batches = True, False

    def __init__(self, count: int, index: int = 0) -> None:
        self.num_processes, self.process_index = count, index


@pytest.fixture
def accumulating() -> Iterator[Any]:
    """accelerate, with gradients that are accumulated over 4 steps."""
    yield accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
    accelerate.state.GradientState._reset_state()
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def loader_of(**options: Any) -> SwiftLoader:
    options = {"num_workers": 0, "validate": False, **options}
    return SwiftLoader(Numbers, {"n": 23}, 4, shuffle=True, seed=3, **options)


def ends_of(loader: Any) -> list[bool]:
    """After each batch, what accelerate takes it for: the last one or not."""
    state = accelerate.state.GradientState()
    return [state.end_of_dataloader for _ in loader]


def test_loader_has_all_that_the_loader_in_it_has(accumulating: Any) -> None:
    loader = for_accelerate(loader_of(), accumulating)
    assert for_accelerate(loader, accumulating) is loader
    assert (len(loader), loader.batch_size, loader.total_batch_size) == (6, 4, 4)
    assert len(loader.dataset) == loader.nb_samples == 23
    assert loader.started
    for number in range(2):
        assert loader.iteration == number
        assert ends_of(loader) == [False] * 5 + [True]
    loader.set_epoch(0)
    rows = [i.tolist() for _, i in loader.progress(disable=True)]
    with loader_of() as other, pytest.warns(UserWarning, match="for_accelerate"):
        assert [i.tolist() for _, i in other] == rows
    assert not accumulating.gradient_state.in_dataloader
    loader.close()


def test_another_loader_inside_of_an_epoch_has_its_own_end(accumulating: Any) -> None:
    train, val = (for_accelerate(loader_of(), accumulating) for _ in range(2))
    ends = []
    for step, _ in enumerate(train):
        if step == 2:
            assert ends_of(val)[-1]
        ends.append(accumulating.gradient_state.end_of_dataloader)
    assert ends == [False] * 5 + [True]
    train.close()
    val.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_end_of_a_stream_is_known_and_its_state_is_that_of_the_loop(
    num_workers: int, accumulating: Any
) -> None:
    def stream() -> Any:
        return for_accelerate(
            SwiftLoader(Stream, {"n": 14}, 4, num_workers=num_workers, validate=False),
            accumulating,
        )

    first = stream()
    whole, states = [], []
    for _, indices in first:
        whole.append(indices.tolist())
        states.append(first.state_dict())
    assert ends_of(first) == [False] * 3 + [True]
    first.close()
    for done, state in enumerate(states[:-1], 1):
        second = stream()
        second.load_state_dict(json.loads(json.dumps(state)))
        assert [i.tolist() for _, i in second] == whole[done:]
        second.close()


def test_skipping_gives_the_rest_that_the_workers_make(accumulating: Any) -> None:
    def doubled(sample: Any) -> Any:
        return sample[0], 2 * sample[1]

    stream = SwiftLoader(Stream, {"n": 14}, 4, num_workers=1, validate=False)
    for given in (loader_of(transform=doubled), stream):
        loader = for_accelerate(given, accumulating)
        whole = [i.tolist() for _, i in loader]
        loader.set_epoch(0)
        rest = accumulating.skip_first_batches(loader, 2)
        state = accumulating.gradient_state
        seen = [(i.tolist(), state.end_of_dataloader) for _, i in rest]
        last = len(whole) - 1
        assert seen == [(whole[k], k == last) for k in range(2, len(whole))]
        assert loader.num_workers == given.num_workers
        loader.close()


class OneBad(Stream):
    """The sixth sample can't be read."""

    def __iter__(self) -> Iterator[Any]:
        for row, i in super().__iter__():
            if i == 5:
                raise KeyError("bad sample")
            yield row, i


def test_error_comes_in_its_turn(accumulating: Any) -> None:
    loader = for_accelerate(
        SwiftLoader(OneBad, {"n": 14}, 2, num_workers=0, validate=False), accumulating
    )
    seen = []
    with pytest.raises(KeyError, match="bad sample"):
        for _, indices in loader:
            seen.append(indices.tolist())
    assert seen == [[0, 1], [2, 3]]
    loader.close()


def test_loader_that_is_not_told_of_the_tail_is_padded_on_several_processes() -> None:
    for options, processes, tail in (
        ({}, Processes(2), "pad"),
        ({"nb_consumer": 2}, Processes(2), "pad"),
        ({"drop_last": False}, Processes(2), "pad"),
        ({"drop_last": True}, Processes(2), "drop"),
        ({"tail": "balanced"}, Processes(2), "balanced"),
        ({"nb_consumer": 1}, Processes(2), "balanced"),
        ({}, Processes(1), "balanced"),
    ):
        loader = for_accelerate(loader_of(**options), processes)
        assert loader.loader._config.tail == tail, options
        loader.close()
    uneven = Processes(2)
    uneven.even_batches = False
    loader = for_accelerate(loader_of(), uneven)
    assert loader.loader._config.tail == "balanced"
    loader.close()


def test_what_does_not_go_with_several_processes_is_refused() -> None:
    splitting = Processes(2)
    splitting.split_batches = True
    for options, processes, says in (
        ({}, splitting, "split_batches=True: .* divided by 2"),
        ({"nb_consumer": 3}, Processes(2), "nb_consumer=3: accelerate has 2 ranks"),
    ):
        with loader_of(**options) as loader, pytest.raises(ConfigError, match=says):
            for_accelerate(loader, processes)
    sampler = RandomSampler(range(23))
    with (
        SwiftLoader(Numbers, {"n": 23}, sampler=sampler, num_workers=0, validate=False) as loader,
        pytest.raises(ConfigError, match="DistributedSampler"),
    ):
        for_accelerate(loader, Processes(2))


def test_plain_loader_warns_where_the_last_gradients_would_be_lost(accumulating: Any) -> None:
    with loader_of() as loader, pytest.warns(UserWarning, match=r"for_accelerate\(loader, acc"):
        next(iter(loader))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with loader_of(drop_last=True).with_options(batch_size=5) as loader:  # 4 steps
            next(iter(loader))
        loader = for_accelerate(loader_of(), accumulating)
        next(iter(loader))
        loader.close()
