"""What must hold for every kind of worker: child processes, threads, endpoints, Ray actors.

A test module for a kind subclasses `Conformance` and says how a loader with such workers is made.
"""

from __future__ import annotations

import json
import logging
import os
import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from swift_loader import SwiftLoader, WorkerError
from swift_loader.loader.seeds import default_seed
from swift_loader.plan import Plan
from tests import datasets


def plan_of(loader: SwiftLoader, **changes: Any) -> Plan:
    """The plan that a loader of default options follows, for comparing with a plain loop."""
    config = loader._config
    seed = default_seed(config.nb_consumer) if loader.seed is None else loader.seed
    return Plan(
        loader.nb_samples,
        config.batch_size,
        config.nb_consumer,
        config.shuffle,
        config.nearby_shuffle,
        seed,
        config.tail,
        **changes,
    )


def indices_of(batch: Any) -> list[int]:
    """The sample indices in a batch of `datasets.Numbers`, checked against its contents."""
    rows, indices = batch
    assert (rows == indices[:, None]).all()
    assert rows.dtype == torch.float32
    listed: list[int] = indices.tolist()
    return listed


class Conformance:
    """Subclasses give `loader`, and say what a worker has of this process's."""

    own_machine = True  # environment, CPUs and signals are as in this process
    settings_arrive = True
    augmented: Any = datasets.Augmented  # draws from what is seeded for a batch

    def loader(self, dataset: Any, kwargs: dict[str, Any], **options: Any) -> SwiftLoader:
        raise NotImplementedError

    @pytest.mark.parametrize("in_order", [True, False])
    @pytest.mark.parametrize("multithread", [True, False])
    def test_sequence_equals_a_plain_loop_over_the_plan(
        self, in_order: bool, multithread: bool
    ) -> None:
        options = {
            "batch_size": 7,
            "nb_consumer": 2,
            "worker_per_consumer": 3,
            "shuffle": True,
            "in_order": in_order,
            "multithread": multithread,
            "seed": 5,
        }
        for consumer in range(2):
            with self.loader(datasets.Uneven, {"n": 101}, **options) as loader:
                loader.start(consumer, to_device=lambda batch, device: batch)
                plan = plan_of(loader)
                for epoch in range(3):
                    want = [
                        plan.batch(epoch, consumer, k).tolist()
                        for k in range(plan.nb_batches(consumer))
                    ]
                    got = [indices_of(batch) for batch in loader]
                    assert len(got) == len(loader) == len(want)
                    assert (got if in_order else sorted(got)) == (
                        want if in_order else sorted(want)
                    )

    def test_random_draws_depend_on_the_batch_and_on_nothing_else(self) -> None:
        seen = []
        for workers in (1, 2, 5):
            with self.loader(
                self.augmented, {"n": 24}, batch_size=4, worker_per_consumer=workers
            ) as loader:
                torch.manual_seed(1)
                np.random.seed(1)
                random.seed(1)
                before = torch.rand(1), np.random.rand(), random.random()
                torch.manual_seed(1)
                np.random.seed(1)
                random.seed(1)
                epochs = [[_plain(batch) for batch in loader] for _ in range(2)]
                assert (torch.rand(1), np.random.rand(), random.random()) == before
            assert epochs[0] != epochs[1]
            draws = [value for batch in epochs[0] for value in batch["random"]]
            assert len(set(draws)) == len(draws)
            seen.append(epochs)
        assert seen[0] == seen[1] == seen[2]

    def test_random_draws_differ_between_consumers(self) -> None:
        draws = []
        for consumer in range(2):
            with self.loader(
                self.augmented, {"n": 24}, batch_size=4, nb_consumer=2, worker_per_consumer=2
            ) as loader:
                loader.start(consumer)
                draws += [value for batch in loader for value in batch["torch"].flatten().tolist()]
        assert len(set(draws)) == len(draws)

    def test_every_type_arrives_as_torch_would_collate_it(self) -> None:
        with self.loader(datasets.Mixed, {"n": 6}, batch_size=3) as loader:
            batches = list(loader)
        first = batches[0]
        assert first["tensor"].tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
        assert first["array"].dtype == torch.float32
        assert first["int"].tolist() == [0, 1, 2]
        assert first["float"].dtype == torch.float64
        assert first["bool"].tolist() == [True, False, True]
        assert first["str"] == ["sample 0", "sample 1", "sample 2"]
        assert first["bytes"] == [b"\0", b"\1", b"\2"]
        assert first["none"] is None
        assert [part.tolist() for part in first["list"]] == [[0, 1, 2], [0, 1, 2]]
        assert type(first["pair"]).__name__ == "Pair"
        assert first["pair"].right.dtype == torch.float64
        assert isinstance(first["record"], datasets.Record)
        assert first["record"].values.tolist() == [[0, 0], [1, 1], [2, 2]]
        assert first["bfloat16"].dtype == torch.bfloat16
        assert first["complex"].tolist() == [0, 1 - 1j, 2 - 2j]
        assert first["empty"].shape == (3, 0)

    def test_batches_of_changing_size_and_large_ones_arrive_whole(self) -> None:
        with self.loader(
            datasets.Big, {"n": 40, "nbytes": 1 << 20, "vary": True}, batch_size=1
        ) as loader:
            for _ in range(2):
                for rows, indices in loader:
                    index = int(indices[0])
                    assert rows.shape == (1, (1 << 20) // (1 + index % 5))
                    assert (rows == index % 251).all()

    def test_long_texts_arrive_whole(self) -> None:
        # The part of a batch that is pickled is too long for a message then.
        with self.loader(datasets.Texts, {"n": 120}, batch_size=3) as loader:
            for batch in loader:
                for text, index in zip(batch["text"], batch["index"].tolist(), strict=True):
                    assert text == datasets.Texts.text(index)

    def test_batches_that_are_kept_stay_right(self) -> None:
        with self.loader(datasets.Numbers, {"n": 600}, batch_size=4) as loader:
            kept = list(loader)
        assert [i for batch in kept for i in indices_of(batch)] == list(range(600))

    def test_a_sample_that_raises_arrives_with_its_type_and_place(self) -> None:
        with self.loader(
            datasets.Raises, {"n": 30, "bad": (17,)}, batch_size=5, validate=False
        ) as loader:
            iterator = iter(loader)
            for _ in range(3):
                indices_of(next(iterator))
            with pytest.raises(ValueError, match="sample 17 is broken") as caught:
                next(iterator)
        story = str(caught.value.__cause__)
        assert isinstance(caught.value.__cause__, WorkerError)
        assert "batch 3 of epoch 0" in story
        assert "sample 17" in story
        assert "worker" in story
        assert "in __getitem__" in story

    def test_a_batch_that_can_not_be_collated_names_field_shapes_and_samples(self) -> None:
        with (
            self.loader(datasets.Shapes, {"n": 8}, batch_size=4, validate=False) as loader,
            pytest.raises((RuntimeError, ValueError, TypeError), match="image") as caught,
        ):
            list(loader)
        assert "(3, 5)" in str(caught.value)
        assert "fetching" not in str(caught.value.__cause__)

    def test_an_early_break_is_followed_by_the_next_epoch_from_its_beginning(self) -> None:
        with self.loader(
            datasets.Numbers, {"n": 60}, batch_size=3, shuffle=True, worker_per_consumer=2
        ) as loader:
            plan = plan_of(loader)
            for epoch in range(12):
                for k, batch in enumerate(loader):
                    assert indices_of(batch) == plan.batch(epoch, 0, k).tolist()
                    if k == epoch % 4:
                        break

    def test_keys_of_a_sampler_reach_the_dataset_as_they_are(self) -> None:
        batches: list[list[Any]] = [["a", (32, 0)], [2.5, None, 2**70], [], ["bad", 5], [3, 4]]
        with self.loader(
            datasets.Asked, {}, batch_sampler=batches, collate_fn=list, on_error="skip"
        ) as loader:
            loader.start(0)
            assert list(loader) == [
                [(type(key).__name__, key) for key in batch if key != "bad"] for batch in batches
            ]
            assert loader.stats().skipped == ("bad",)

    def test_what_a_data_set_is_told_may_be_long(self) -> None:
        with self.loader(
            datasets.Weighed, {"n": 24}, batch_size=4, worker_per_consumer=2
        ) as loader:
            list(loader)
            loader.call_dataset("weigh", list(range(100_000)))
            assert {nb for batch in loader for nb in batch.tolist()} == {100_000}

    def test_batches_of_very_many_samples_come_in_an_order_of_ones_own(self) -> None:
        order = [list(range(59_999, 19_999, -1)), [7], list(range(20_000))]
        with self.loader(
            datasets.Numbers, {"n": 60_000, "width": 1}, batch_sampler=order, timeout=60.0
        ) as loader:
            assert [indices_of(batch) for batch in loader] == order

    def test_state_resumes_exactly_in_mid_epoch(self) -> None:
        options = {"batch_size": 4, "worker_per_consumer": 2, "shuffle": True}
        with self.loader(self.augmented, {"n": 50}, **options) as loader:
            undisturbed = [[_plain(batch) for batch in loader] for _ in range(3)]
        with self.loader(self.augmented, {"n": 50}, **options) as loader:
            list(loader)
            iterator = iter(loader)
            for _ in range(5):
                next(iterator)
            state = loader.state_dict()
        with self.loader(self.augmented, {"n": 50}, **options) as loader:
            loader.load_state_dict(state)
            assert loader.state_dict() == state
            rest = [_plain(batch) for batch in loader]
            last = [_plain(batch) for batch in loader]
        assert rest == undisturbed[1][5:]
        assert last == undisturbed[2]

    def test_a_worker_is_born_as_torch_bears_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SWIFT_LOADER_TEST", "as here")
        level = logging.getLogger("of.tests").level
        logging.getLogger("of.tests").setLevel(37)
        torch.set_default_dtype(torch.float64)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("once")
                with self.loader(
                    datasets.Birth,
                    {"n": 24},
                    batch_size=2,
                    worker_per_consumer=2,
                    worker_init_fn=datasets.Birth.init,
                    worker_affinity=[min(os.sched_getaffinity(0))],
                    seed=2**63 - 1,
                    nb_consumer=2,
                    validate=False,
                ) as loader:
                    loader.start(1)
                    born = {one["pid"]: one for batch in loader for one in map(json.loads, batch)}
        finally:
            torch.set_default_dtype(torch.float32)
            logging.getLogger("of.tests").setLevel(level)
        assert born
        for one in born.values():
            first = one["at_init"]
            assert one["own"]
            assert first["own"]
            assert 0 <= one["id"] < one["num_workers"]
            assert first["argument"] == first["id"] == one["id"]
            assert one["seed"] == (2**63 - 1 + one["id"]) % 2**63 == first["initial_seed"]
            assert one["initial_seed"] < 2**63
            dtype = getattr(torch, one["dtype"].removeprefix("torch."))
            generator = torch.Generator().manual_seed(one["seed"])
            numpy = np.random.RandomState(one["seed"] % 2**32)
            assert one["drawn"][:2] == [random.Random(one["seed"]).random(), numpy.rand()]
            assert one["drawn"][2] == float(torch.rand(1, generator=generator, dtype=dtype))
            assert one["threads"] == int(os.environ.get("OMP_NUM_THREADS", 1))
            if self.settings_arrive:
                assert (one["dtype"], one["warnings"], one["level"]) == (
                    "torch.float64",
                    "once",
                    37,
                )
            if self.own_machine:
                assert one["environment"] == "as here"
                assert one["cpus"] == [min(os.sched_getaffinity(0))]
                assert one["handled"] == [True] * 4  # by functions, which programs don't inherit


def _plain(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() for name, value in batch.items()}
