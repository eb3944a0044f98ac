"""Batches on a CUDA device: right, in order, from pinned slots, beside a busy device."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from swift_loader import ConfigError, SwiftLoader
from tests import datasets
from tests.conformance import Conformance, plan_of

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("device", "nothing_left")]

_BUSY_CYCLES = 1_000_000  # about half a millisecond
_CPU = torch.device("cpu")


def be_busy() -> None:
    torch.cuda._sleep(_BUSY_CYCLES)  # type: ignore[no-untyped-call]


def numbers(nb_batches: int, **options: Any) -> SwiftLoader:
    """Batches of 8 rows of 64 KB, each full of its sample's index."""
    return SwiftLoader(
        datasets.Numbers, {"n": 8 * nb_batches, "width": 1 << 14}, batch_size=8, **options
    )


def there_and_back(batch: Any, device: torch.device) -> Any:
    """To the device, and what comes of it to the CPU, as a batch that can be looked at."""
    from swift_loader.pipeline.staging import move

    return move(move(batch, torch.device("cuda", 0)), _CPU)


class OverTheDevice(SwiftLoader):
    """Each batch goes to the device and back before the loop has it."""

    def start(self, consumer_index: int, device: Any = None, to_device: Any = None) -> None:
        super().start(consumer_index, device or "cuda:0", to_device or there_and_back)


class TestOverTheDevice(Conformance):
    def loader(self, dataset: Any, kwargs: dict[str, Any], **options: Any) -> SwiftLoader:
        return OverTheDevice(dataset, kwargs, **options)


@pytest.mark.parametrize("data_queue_size", [1, 2, 10])
@pytest.mark.parametrize("max_nb_batch_on_device", [1, 3])
@pytest.mark.parametrize("multithread", [True, False])
def test_batches_are_right_while_the_device_is_busy(
    device: torch.device, data_queue_size: int, max_nb_batch_on_device: int, multithread: bool
) -> None:
    nb_wrong = torch.zeros((), dtype=torch.int64, device=device)
    seen = []
    with numbers(
        200,
        worker_per_consumer=3,
        shuffle=True,
        data_queue_size=data_queue_size,
        max_nb_batch_on_device=max_nb_batch_on_device,
        multithread=multithread,
    ) as loader:
        loader.start(0, device)
        for rows, indices in loader:
            be_busy()  # the kernels behind wait in line, while slots and memory are used anew
            nb_wrong += (rows != indices[:, None]).sum()
            seen.append(indices.clone())
            del rows, indices
        plan = plan_of(loader)
        want = [plan.batch(0, 0, k).tolist() for k in range(200)]
    assert [batch.tolist() for batch in seen] == want
    assert int(nb_wrong) == 0


def test_a_loop_on_a_stream_of_its_own_reads_what_was_copied(device: torch.device) -> None:
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    nb_wrong = torch.zeros((), dtype=torch.int64, device=device)
    with numbers(200, worker_per_consumer=2) as loader, torch.cuda.stream(stream):
        loader.start(0, device)
        for rows, indices in loader:
            be_busy()
            nb_wrong += (rows != indices[:, None]).sum()
            del rows, indices
        assert int(nb_wrong) == 0


def test_batches_that_are_kept_stay_right(device: torch.device) -> None:
    with numbers(300, worker_per_consumer=2, data_queue_size=3) as loader:
        loader.start(0, device)
        kept = list(loader)
    assert len(kept) == 300
    for k, (rows, indices) in enumerate(kept):
        assert rows.device == device
        assert indices.tolist() == list(range(8 * k, 8 * k + 8))
        assert bool((rows == indices[:, None]).all())


def test_every_kind_of_value_keeps_its_type(device: torch.device) -> None:
    with SwiftLoader(datasets.Mixed, {"n": 6}, batch_size=3) as loader:
        loader.start(0, device)
        first, _ = list(loader)
    assert first["tensor"].device == first["array"].device == device
    assert first["tensor"].tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
    assert first["str"] == ["sample 0", "sample 1", "sample 2"]
    assert first["none"] is None
    assert type(first["pair"]).__name__ == "Pair"
    assert first["pair"].right.device == device
    assert isinstance(first["record"], datasets.Record)
    assert first["record"].values.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert first["bfloat16"].dtype == torch.bfloat16
    assert first["complex"].device == device
    assert first["empty"].shape == (3, 0)


def _as_arrays(samples: list[Any]) -> dict[str, Any]:
    return {
        "rows": np.stack([row.numpy() for row, _ in samples]),
        "names": np.array([f"sample {index}" for _, index in samples]),
    }


def test_numeric_arrays_become_tensors_on_the_device_and_texts_stay(device: torch.device) -> None:
    with SwiftLoader(datasets.Numbers, {"n": 8}, batch_size=4, collate_fn=_as_arrays) as loader:
        loader.start(0, device)
        for batch in loader:
            assert batch["rows"].device == device
            assert isinstance(batch["names"], np.ndarray)
            assert batch["rows"][:, 0].tolist() == [
                float(name.split()[1]) for name in batch["names"]
            ]


class Own:
    """A batch of a user's own class, that moves itself."""

    def __init__(self, parts: dict[str, Any]) -> None:
        self.parts = parts
        self.myself = self

    def to(self, device: torch.device) -> Own:
        return Own({name: part.to(device) for name, part in self.parts.items()})


def _own(batch: Any, device: torch.device) -> Own:
    rows, indices = batch
    return Own({"rows": rows, "indices": indices}).to(device)


def _sparse(batch: Any, device: torch.device) -> Any:
    rows, indices = batch
    on_device = rows.to(device, non_blocking=True) + 1
    return Own({"rows": on_device.to_sparse(), "indices": indices.to(device)})


def _sparse_rows(batch: Any, device: torch.device) -> Any:
    rows, indices = batch
    on_device = rows.to(device, non_blocking=True) + 1
    return Own({"rows": on_device.to_sparse_csr(), "indices": indices.to(device)})


@pytest.mark.parametrize("to_device", [_own, _sparse, _sparse_rows])
def test_memory_of_any_batch_is_not_reused_early(device: torch.device, to_device: Any) -> None:
    nb_wrong = torch.zeros((), dtype=torch.int64, device=device)
    with numbers(200, worker_per_consumer=2) as loader:
        loader.start(0, device, to_device)
        for batch in loader:
            be_busy()
            rows, indices = batch.parts["rows"], batch.parts["indices"]
            values = rows if to_device is _own else rows.to_dense() - 1
            nb_wrong += (values != indices[:, None]).sum()
            del batch, rows, indices, values
    assert int(nb_wrong) == 0


def _pinned(batch: Any, device: torch.device) -> Any:
    return batch[0].is_pinned(), batch[0].to(device, non_blocking=True)


def test_slots_are_pinned_once_each(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    registered: list[int] = []

    class Counted:
        cudaHostUnregister = staticmethod(cudart.cudaHostUnregister)  # noqa: N815

        @staticmethod
        def cudaHostRegister(address: int, nbytes: int, flags: int) -> Any:  # noqa: N802
            registered.append(nbytes)
            return cudart.cudaHostRegister(address, nbytes, flags)

    monkeypatch.setattr(torch.cuda, "cudart", lambda: Counted)
    with numbers(300, worker_per_consumer=2, data_queue_size=4) as loader:
        loader.start(0, device, _pinned)
        for _ in range(3):
            for pinned, rows in loader:
                assert pinned
                assert rows.device == device
        assert 0 < len(registered) <= 16  # and not 900
    del pinned, rows


def test_pinning_ends_with_the_mapping(device: torch.device) -> None:
    host_batch: list[torch.Tensor] = []

    def keep(batch: Any, device: torch.device) -> Any:
        host_batch.append(batch[0])
        return batch[0].to(device, non_blocking=True)

    with numbers(20, worker_per_consumer=1) as loader:
        loader.start(0, device, keep)
        for _ in loader:
            be_busy()
    kept = host_batch[0]
    host_batch.clear()
    assert kept.is_pinned()  # after close(), for it is held
    assert bool((kept[:, 0] == torch.arange(8)).all())


def test_memory_that_can_not_be_pinned_still_arrives(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        @staticmethod
        def cudaHostRegister(address: int, nbytes: int, flags: int) -> int:  # noqa: N802
            return 2

    monkeypatch.setattr(torch.cuda, "cudart", lambda: Refusing)
    with numbers(50, worker_per_consumer=2) as loader:
        loader.start(0, device)
        for rows, indices in loader:
            assert bool((rows == indices[:, None]).all())


def test_a_refused_registration_leaves_no_error_behind(device: torch.device) -> None:
    from swift_loader.pipeline.staging import pin_mapping
    from swift_loader.transport.memory import create_region, map_shared

    fd = create_region(1 << 20, "test")
    mapping = map_shared(fd, 1 << 20)
    pin_mapping(device, mapping, fd)
    unpin, mapping.before_unmap = mapping.before_unmap, None
    assert unpin is not None
    pin_mapping(device, mapping, fd)  # once more is an error of the driver's
    assert mapping.before_unmap is None
    assert float((torch.ones(8, device=device) * 2).sum()) == 16
    unpin()
    os.close(fd)


@pytest.mark.parametrize("named", ["cuda", torch.device("cuda"), "cuda:0"])
def test_device_may_be_named_in_any_way(device: torch.device, named: Any) -> None:
    with numbers(4) as loader:
        loader.start(0, named)
        assert all(rows.device == device for rows, _ in loader)


def test_device_that_is_not_there_is_refused(device: torch.device) -> None:
    with numbers(4) as loader:
        with pytest.raises(ConfigError, match=r"cuda:99.*CUDA_VISIBLE_DEVICES"):
            loader.start(0, "cuda:99")
        loader.start(0, device)
        assert len(list(loader)) == 4


def test_killed_worker_costs_no_batch_and_spoils_none(device: torch.device) -> None:
    nb_wrong = torch.zeros((), dtype=torch.int64, device=device)
    seen = []
    with numbers(300, worker_per_consumer=3, data_queue_size=4) as loader:
        loader.start(0, device)
        for k, (rows, indices) in enumerate(loader):
            be_busy()
            nb_wrong += (rows != indices[:, None]).sum()
            seen.append(indices)
            if k in (50, 120, 200):
                pid = next(worker.pid for worker in loader.stats().workers if worker.pid)
                os.kill(pid, signal.SIGKILL)
            del rows
    assert torch.cat(seen).tolist() == list(range(2400))
    assert int(nb_wrong) == 0


def test_memory_of_the_device_stays_flat(device: torch.device) -> None:
    with numbers(40, worker_per_consumer=2) as loader:
        loader.start(0, device)
        reserved = []
        for _ in range(30):
            for rows, _ in loader:
                be_busy()
                rows.sum()
            del rows
            torch.cuda.synchronize()
            reserved.append(torch.cuda.memory_reserved(device))
    assert reserved[-1] == reserved[4]


def test_early_breaks_and_close_in_the_middle_of_copies(device: torch.device) -> None:
    for stop in range(6):
        loader = numbers(40, worker_per_consumer=2, max_nb_batch_on_device=3)
        loader.start(0, device)
        for _ in range(3):
            for k, (rows, indices) in enumerate(loader):
                be_busy()
                good = (rows == indices[:, None]).all()
                if k == stop:
                    break
            assert bool(good)
        loader.close()
        del rows, indices
    gc.collect()


_SCRIPT = """
import torch
from swift_loader import SwiftLoader
from tests.datasets import Numbers

loader = SwiftLoader(Numbers, {"n": 10_000, "width": 1 << 14}, batch_size=8, worker_per_consumer=2)
loader.start(0, "cuda")
for k, (rows, indices) in enumerate(loader):
    torch.cuda._sleep(1_000_000)
    rows.sum()
    if k == 20:
        break
"""


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "1 / 0", "del loader"])
def test_script_that_ends_without_close_ends_at_once(ending: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _SCRIPT + ending],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == {"raise SystemExit(3)": 3, "1 / 0": 1}.get(ending, 0), ran.stderr
    assert ran.stderr == "" or (ending == "1 / 0" and ran.stderr.count("Error") == 1), ran.stderr


def test_a_captured_graph_reads_each_batch_where_the_first_one_lay(device: torch.device) -> None:
    options: dict[str, Any] = {"device_buffers": "static", "tail": "drop", "shuffle": False}
    with numbers(20, **options) as loader:
        loader.start(0, device)
        batches = iter(loader)
        rows, indices = next(batches)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            total = rows[:, 0].sum() + indices.sum()
        found = []
        for _ in batches:
            graph.replay()
            found.append(total.clone())
    expected = [2.0 * sum(range(8 * k, 8 * k + 8)) for k in range(1, 20)]
    assert [float(each) for each in found] == expected
