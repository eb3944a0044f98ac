"""Lightning's Trainer: every sample once, in the Trainer's epochs, resumed by its checkpoints."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from swift_loader import ConfigError, StateError, SwiftLoader
from tests.datasets import Numbers
from tests.frameworks.diary import NB_TRAIN, NB_VAL, diary

ROOT = Path(__file__).parents[2]
NB_BATCHES = 11  # of 4 samples, of 42

pytestmark = [
    pytest.mark.skipif(find_spec("lightning") is None, reason="needs Lightning"),
    pytest.mark.usefixtures("shared_zygote"),
    pytest.mark.filterwarnings("ignore"),  # Lightning's own
]


def fit(folder: Path, name: str, **options: Any) -> None:
    """As `trainer_run.fit`. Lightning takes seconds to import: only who runs these tests does."""
    from tests.frameworks import trainer_run

    trainer_run.fit(folder, name, **options)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, shared_zygote: object) -> Path:
    """A folder with a run of two epochs on one rank, and a checkpoint of each step."""
    folder = tmp_path_factory.mktemp("alone")
    fit(folder, "whole", save="step")
    return folder


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run on two ranks, and with one that goes on from its step 4."""
    folder = tmp_path_factory.mktemp("together")
    subprocess.run(
        [sys.executable, "-m", "tests.frameworks.trainer_run", str(folder)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=200,
    )
    return folder


def samples(lines: list[dict[str, Any]], epoch: int | None = None) -> list[int]:
    return [
        index
        for line in lines
        if epoch is None or line["epoch"] == epoch
        for index in line["indices"]
    ]


def test_fit_gives_each_sample_once_an_epoch_in_an_order_of_its_own(alone: Path) -> None:
    train = diary(alone, "whole")
    first, second = samples(train, epoch=0), samples(train, epoch=1)
    assert sorted(first) == sorted(second) == list(range(NB_TRAIN))
    assert first != second


def test_trainer_knows_how_long_an_epoch_is(alone: Path) -> None:
    train = diary(alone, "whole")
    assert {line["of"] for line in train} == {NB_BATCHES}
    assert [line["k"] for line in train if line["last"]] == [NB_BATCHES - 1] * 2


def test_validation_is_whole_after_the_sanity_check_broke_off(alone: Path) -> None:
    assert samples(diary(alone, "whole", what="sanity")) == list(range(8))
    validated = diary(alone, "whole", what="validate")
    for epoch in range(2):
        assert samples(validated, epoch) == list(range(NB_VAL))


@pytest.mark.parametrize("step", [1, 5, 11, 14])
def test_checkpoint_of_any_step_goes_on_with_what_was_left(alone: Path, step: int) -> None:
    name = f"from{step}"
    fit(alone, name, resume=alone / f"whole-step={step}.ckpt")
    assert diary(alone, name) == diary(alone, "whole")[step:]


def test_checkpoint_of_an_epoch_goes_on_with_the_next(tmp_path: Path) -> None:
    fit(tmp_path, "short", epochs=1, save="epoch")
    fit(tmp_path, "rest", resume=tmp_path / "short-epoch=0.ckpt")
    fit(tmp_path, "whole")
    assert diary(tmp_path, "rest") == diary(tmp_path, "whole")[NB_BATCHES:]


def test_limited_epochs_are_the_beginnings_of_the_whole_ones(alone: Path) -> None:
    fit(alone, "limited", limit=3, save="step")
    whole = samples(diary(alone, "whole"), 0)[:12] + samples(diary(alone, "whole"), 1)[:12]
    assert samples(diary(alone, "limited")) == whole
    for step in (2, 3, 4):
        name = f"limited{step}"
        fit(alone, name, limit=3, resume=alone / f"limited-step={step}.ckpt")
        assert diary(alone, name) == diary(alone, "limited")[step:]


def test_ranks_share_an_epoch_and_nothing_is_dealt_out_twice(together: Path) -> None:
    ranks = [diary(together, "whole", rank) for rank in range(2)]
    assert [len(rank) for rank in ranks] == [12, 12]  # 6 of 4 samples, or of 3, in each epoch
    for epoch in range(2):
        both = samples(ranks[0], epoch) + samples(ranks[1], epoch)
        assert sorted(both) == list(range(NB_TRAIN))
    both = [i for rank in range(2) for i in samples(diary(together, "whole", rank, "validate"), 1)]
    assert sorted(both) == list(range(NB_VAL))


def test_ranks_go_on_from_a_checkpoint(together: Path) -> None:
    for rank in range(2):
        assert diary(together, "rest", rank) == diary(together, "whole", rank)[4:]


@pytest.mark.parametrize("kind", ["stream", "sampler"])
def test_ranks_that_each_have_a_state_of_their_own_go_on_from_a_checkpoint(
    together: Path, kind: str
) -> None:
    for rank in range(2):
        whole = diary(together, kind, rank)
        assert len(whole) == 12
        assert diary(together, f"{kind} rest", rank) == whole[4:]
    both = [index for rank in range(2) for index in samples(diary(together, kind, rank), 1)]
    assert sorted(both) == list(range(NB_TRAIN))


def test_checkpoint_of_another_number_of_ranks_is_refused(together: Path) -> None:
    with pytest.raises(StateError, match="an epoch had 6 batches and has 11 now"):
        fit(together, "one", resume=together / "whole-step=4.ckpt")


def test_loader_for_another_number_of_ranks_is_refused() -> None:
    from swift_loader.integrations.lightning import for_trainer

    class Trainer:
        world_size, global_rank, strategy = 2, 0, None

    with (
        SwiftLoader(Numbers, {"n": 42}, 4, nb_consumer=3, validate=False) as loader,
        pytest.raises(ConfigError, match=r"nb_consumer=3: the Trainer has 2 ranks"),
    ):
        for_trainer(loader, Trainer())
