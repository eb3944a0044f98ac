"""Frameworks that take a loader in one process: Fabric, ignite, accelerate."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler

from swift_loader import ConfigError, SwiftLoader
from tests.datasets import Numbers

pytestmark = [
    pytest.mark.usefixtures("shared_zygote"),
    pytest.mark.filterwarnings("ignore"),  # theirs
]


def loader_of(**options: Any) -> SwiftLoader:
    return SwiftLoader(Numbers, {"n": 42}, 4, shuffle=True, seed=3, validate=False, **options)


def samples(loader: Any) -> list[int]:
    return [i for _, indices in loader for i in indices.tolist()]


@pytest.fixture
def wanted() -> list[list[int]]:
    with loader_of(num_workers=0) as loader:
        return [samples(loader) for _ in range(3)]


def test_fabric_starts_the_loader_for_its_rank_once(wanted: list[list[int]]) -> None:
    fabric_module = pytest.importorskip("lightning.fabric", reason="needs Lightning")
    from swift_loader.integrations.fabric import for_fabric

    fabric = fabric_module.Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    with loader_of() as loader:
        assert for_fabric(loader, fabric) is loader
        assert loader.started
        assert for_fabric(loader, fabric) is loader
        assert [samples(loader) for _ in range(3)] == wanted
    with (
        loader_of(nb_consumer=2) as loader,
        pytest.raises(ConfigError, match="nb_consumer=2: Fabric has 1 ranks"),
    ):
        for_fabric(loader, fabric)


class TwoRanks:
    """What Fabric or the Trainer tells of itself on one of two ranks."""

    world_size, device = 2, torch.device("cpu")
    overfit_batches = 0

    def __init__(self, rank: int) -> None:
        self.global_rank = rank
        self.strategy = SimpleNamespace(root_device=self.device)


def adapter(integration: str) -> Any:
    module = importlib.import_module(f"swift_loader.integrations.{integration}")
    return module.for_fabric if integration == "fabric" else module.for_trainer


@pytest.mark.parametrize("integration", ["fabric", "lightning"])
def test_number_of_consumers_is_that_of_the_ranks(
    integration: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")  # as Lightning's launcher sets them
    monkeypatch.setenv("RANK", "0")
    adapt = adapter(integration)
    loaders = [adapt(loader_of(num_workers=0), TwoRanks(rank)) for rank in range(2)]
    both = [samples(loader) for loader in loaders]
    assert len(both[0]) == len(both[1]) == 21
    assert sorted(both[0] + both[1]) == list(range(42))
    for loader in loaders:
        getattr(loader, "loader", loader).close()
    monkeypatch.setenv("WORLD_SIZE", "1")
    with loader_of(num_workers=0) as started:
        started.start()
        with pytest.raises(ConfigError, match=r"nb_consumer=1: .* has 2 ranks; leave it out"):
            adapt(started, TwoRanks(0))


@pytest.mark.parametrize("integration", ["fabric", "lightning"])
def test_each_rank_keeps_all_of_a_loader_that_was_told_of_one_consumer(
    integration: str, monkeypatch: pytest.MonkeyPatch, wanted: list[list[int]]
) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    adapt = adapter(integration)
    with loader_of(num_workers=0, nb_consumer=1) as loader:
        adapted = adapt(loader, TwoRanks(1))
        assert [samples(adapted), samples(loader)] == wanted[:2]


def test_each_rank_keeps_all_where_the_trainer_deals_nothing_out(
    monkeypatch: pytest.MonkeyPatch, wanted: list[list[int]]
) -> None:
    pl = pytest.importorskip("lightning.pytorch", reason="needs Lightning")
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)  # as torchrun sets them
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", use_distributed_sampler=False, logger=False,
        enable_checkpointing=False, enable_progress_bar=False,
    )  # fmt: skip
    assert trainer.world_size == 2
    adapted = adapter("lightning")(loader_of(num_workers=0), trainer)
    assert samples(adapted) == wanted[0]
    adapted.loader.close()


@pytest.mark.parametrize("integration", ["fabric", "lightning"])
@pytest.mark.parametrize("option", ["sampler", "batch_sampler"])
def test_sampler_made_for_one_process_is_refused_with_several_ranks(
    integration: str, option: str
) -> None:
    sampler = RandomSampler(range(42))
    given = sampler if option == "sampler" else BatchSampler(sampler, 4, False)
    adapt = adapter(integration)
    options = {option: given, "num_workers": 0, "validate": False}
    with (
        SwiftLoader(Numbers, {"n": 42}, **options) as loader,
        pytest.raises(ConfigError, match=rf"^{option}=.* has 2 ranks, .* DistributedSampler"),
    ):
        adapt(loader, TwoRanks(0))
    with SwiftLoader(Numbers, {"n": 42}, nb_consumer=2, **options) as loader:
        assert sorted(samples(adapt(loader, TwoRanks(0)))) == list(range(42))


def test_engine_of_ignite_gets_each_epoch_whole_and_goes_on_after_a_checkpoint(
    wanted: list[list[int]],
) -> None:
    engines = pytest.importorskip("ignite.engine", reason="needs ignite")
    seen: list[list[int]] = []

    def step(engine: Any, batch: Any) -> None:
        seen[-1] += batch[1].tolist()
        if engine.state.iteration == 15:
            saved.update(engine=engine.state_dict(), loader=loader.state_dict())

    saved: dict[str, Any] = {}
    engine = engines.Engine(step)
    engine.add_event_handler(engines.Events.EPOCH_STARTED, lambda: seen.append([]))
    with loader_of() as loader:
        state = engine.run(loader, max_epochs=3)
        assert state.epoch_length == 11
    assert seen == wanted
    with loader_of() as loader:
        loader.load_state_dict(saved["loader"])
        assert samples(loader) == wanted[1][4 * 4 :]
        assert samples(loader) == wanted[2]


@pytest.mark.parametrize("started", [False, True])
def test_accelerate_leaves_the_loader_as_it_is(wanted: list[list[int]], started: bool) -> None:
    accelerate = pytest.importorskip("accelerate", reason="needs Hugging Face accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    with loader_of() as loader:
        if started:
            loader.start(accelerator.process_index, accelerator.device)
        _, prepared = accelerator.prepare(torch.nn.Linear(4, 1), loader)
        assert prepared is loader
        assert [samples(prepared) for _ in range(3)] == wanted
