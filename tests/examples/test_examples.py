"""Every example runs in its short form, keeps what it promises, and leaves no process behind.

The examples check themselves (accuracy reached, loss fallen) and exit with an error otherwise.
`fabric_digits.py` is what the test command runs at its end.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 300  # ten to twenty seconds each on a machine that does nothing else
MARK = "SWIFT_LOADER_EXAMPLE_RUN"

pytestmark = [
    pytest.mark.timeout(LIMIT_S + 20),
    pytest.mark.skipif(find_spec("sklearn") is None, reason="needs the examples' requirements"),
]


def processes_of(run: str) -> list[psutil.Process]:
    """All live processes that descend from this run: they inherited its mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == run and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue  # ended meanwhile, or somebody else's
    return found


def run_example(folder: Path, name: str, *arguments: str, launcher: tuple[str, ...] = ()) -> str:
    """What the example printed: into a file in `folder`, as a pipe outlives a killed parent."""
    run = uuid.uuid4().hex
    printed = folder / "printed"
    with printed.open("w") as output:
        example = subprocess.Popen(
            [sys.executable, *launcher, str(ROOT / "examples" / name), *arguments],
            # one thread for the training itself: its workers need the other core
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), MARK: run},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    code = None
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = example.wait(timeout=LIMIT_S)
        _, left = psutil.wait_procs(processes_of(run), timeout=5)
    finally:
        for process in processes_of(run):
            process.kill()
        example.wait()
    assert code == 0, printed.read_text()  # None: it took too long
    assert not left, printed.read_text()
    return printed.read_text()


@pytest.mark.soak
def test_jpeg_files_are_told_apart(tmp_path: Path) -> None:
    output = run_example(tmp_path, "jpeg_folder.py", "--short")
    assert "what the loader did" in output


@pytest.mark.soak
def test_byte_model_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    checkpoint = tmp_path / "lm.pt"
    output = run_example(tmp_path, "byte_lm.py", "--short", "--checkpoint", str(checkpoint))
    assert "goes on from step 30" in output
    assert checkpoint.exists()


def test_bucket_is_read_by_coroutines_and_each_object_once(tmp_path: Path) -> None:
    pytest.importorskip("fsspec", reason="needs fsspec")
    pytest.importorskip("aiohttp", reason="needs aiohttp")
    output = run_example(tmp_path, "bucket.py", "--short")
    assert "200 requests for 200 objects" in output


def test_bucket_of_s3_is_read_by_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("s3fs", reason="needs s3fs")
    server = pytest.importorskip("moto.server", reason="needs moto").ThreadedMotoServer(
        "127.0.0.1", 0, verbose=False
    )
    import boto3

    server.start()
    try:
        host, port = server.get_host_and_port()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "anyone",
            "AWS_SECRET_ACCESS_KEY": "anything",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        client = boto3.client("s3")
        client.create_bucket(Bucket="photographs")
        for i in range(40):
            body = bytes([i]) * (180 * 180 * 3)
            client.put_object(Bucket="photographs", Key=f"train/{i}", Body=body)
        client.close()
        output = run_example(tmp_path, "bucket.py", "--url", "s3://photographs/train", "--n", "40")
    finally:
        server.stop()
    assert output.count("40 objects") == 3
    assert "cache: " in output


@pytest.mark.soak
def test_photographs_are_decoded_once_and_augmented_each_time(tmp_path: Path) -> None:
    output = run_example(tmp_path, "cached_photographs.py", "--short")
    assert "decoded each file once" in output


@pytest.mark.soak
def test_trainer_goes_on_from_its_checkpoint_on_two_ranks(tmp_path: Path) -> None:
    output = run_example(tmp_path, "trainer_digits.py", "--short")
    assert "MEMBER: 2/2" in output
    assert "resumed at step 30, ended at step 200" in output


@pytest.mark.soak
def test_ddp_takes_equal_steps_under_torchrun(tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    output = run_example(tmp_path, "ddp_torchrun.py", "--short", launcher=torchrun)
    assert "24 steps a rank" in output


@pytest.mark.soak
def test_a_mixture_goes_on_with_fewer_ranks(tmp_path: Path) -> None:
    checkpoint = ("--checkpoint", str(tmp_path / "lm"), "--steps", "6")
    losses = []
    for nb_ranks in (3, 2):
        launcher = (
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(nb_ranks),
        )
        output = run_example(tmp_path, "mixture_fsdp.py", *checkpoint, launcher=launcher)
        losses.append(float(output.split("loss ")[1].split()[0]))
        assert output.count("goes on") == (2 if nb_ranks == 2 else 0)
    assert losses[1] < losses[0]


@pytest.mark.soak
def test_accelerate_takes_the_loader_as_it_is(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="needs Hugging Face accelerate")
    output = run_example(tmp_path, "accelerate_digits.py", "--short")
    assert "epoch 8:" in output


@pytest.mark.soak
def test_workers_that_ray_places_share_the_epochs_with_one_at_home(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray")
    output = run_example(tmp_path, "remote_ray.py")
    assert output.count(": 2000 samples") == 3


@pytest.mark.soak
def test_ray_train_gives_each_training_worker_its_share(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray")
    pytest.importorskip("ray.train", reason="needs ray[train]", exc_type=ImportError)
    output = run_example(tmp_path, "ray_train.py", "--short")
    assert "24 steps a rank" in output
