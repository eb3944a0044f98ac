"""Workers on other machines, played by two endpoints on this one, beside two local workers.

    python examples/remote_digits.py

On a cluster the endpoints are started by hand, by systemd or by Slurm (see `examples/deploy`):

    swift-loader keygen cluster.key                                            # once, anywhere
    swift-loader serve --bind tcp://0.0.0.0:6543 --workers 8 --key cluster.key   # on CPU hosts
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from swift_loader import SwiftLoader

NB_ENDPOINT = 2
NB_EPOCH = 12


class Digits:
    """scikit-learn's 1,797 scans of digits, with a shift as augmentation.

    It is defined in this script, and the endpoints have never seen the script: the class travels.
    What it imports has to be installed there.
    """

    def __init__(self) -> None:
        from sklearn.datasets import load_digits

        digits = load_digits()
        self.images = torch.tensor(digits.images / 16, dtype=torch.float32)
        self.labels = torch.tensor(digits.target)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        shift = int(torch.randint(-1, 2, ()))  # the same on whichever machine this is drawn
        return self.images[index].roll(shift, 1).flatten(), self.labels[index]


@contextmanager
def endpoints(key: Path, count: int) -> Iterator[list[str]]:
    """Endpoints on free ports of this machine; gives their addresses."""
    command = [sys.executable, "-m", "swift_loader.cli"]
    subprocess.run([*command, "keygen", str(key)], check=True)
    running = [
        subprocess.Popen(
            [*command, "serve", "--workers", "1", "--key", str(key)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    try:
        yield [f"tcp://{one.stdout.readline().strip()}" for one in running if one.stdout]
    finally:
        for one in running:
            one.terminate()
        for one in running:
            one.wait()
            if one.stdout:
                one.stdout.close()


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    loss, right, seen = torch.zeros(()), 0, 0
    with (
        tempfile.TemporaryDirectory() as folder,
        endpoints(Path(folder) / "cluster.key", NB_ENDPOINT) as addresses,
        SwiftLoader(
            Digits,
            batch_size=32,
            shuffle=True,
            worker_per_consumer=2,
            remote_workers=addresses,
            remote_key=Path(folder) / "cluster.key",
        ) as loader,
    ):
        loader.start(0)
        for epoch in range(NB_EPOCH):
            right = seen = 0
            for images, labels in loader:
                outputs = model(images)
                loss = nn.functional.cross_entropy(outputs, labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                right += int((outputs.argmax(1) == labels).sum())
                seen += len(labels)
            print(f"epoch {epoch}: loss {loss:.3f}, accuracy {right / seen:.3f}", flush=True)
        stats = loader.stats()
    for worker in stats.workers:
        print(f"worker {worker.worker}: {worker.batches} batches")
    assert seen == 1797
    assert right / seen > 0.9


if __name__ == "__main__":
    main()
