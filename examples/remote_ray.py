"""Workers that Ray places: on this machine, or on the cluster that RAY_ADDRESS names.

    pip install 'swift-loader[ray]'
    python examples/remote_ray.py

Inside Ray Train, write the same in the training function, with
``nb_consumer=context.get_world_size()`` and ``loader.start(context.get_world_rank(), device)``.
"""

from __future__ import annotations

import ray
import torch
from torch import Tensor

from swift_loader import SwiftLoader
from swift_loader.remote import RayWorkers


class Waves:
    """Noisy sine waves, and their frequencies: work for a CPU."""

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> tuple[Tensor, float]:
        frequency = 1.0 + index % 10
        time = torch.linspace(0, 6.28, 512)
        return torch.sin(frequency * time) + 0.1 * torch.randn(512), frequency


def main() -> None:
    ray.init(log_to_driver=False)
    with SwiftLoader(
        Waves,
        batch_size=50,
        shuffle=True,
        worker_per_consumer=1,  # one at home, beside those of Ray
        remote_workers=RayWorkers(num_workers=2, num_cpus=0.5),
    ) as loader:
        loader.start(0)
        for epoch in range(3):
            seen = 0
            for waves, _ in loader:
                peaks = torch.fft.rfft(waves).abs().argmax(1)
                seen += len(peaks)
            print(f"epoch {epoch}: {seen} samples", flush=True)
            assert seen == 2000
        for worker in loader.stats().workers:
            print(f"worker {worker.worker}: {worker.batches} batches")
    ray.shutdown()


if __name__ == "__main__":
    main()
