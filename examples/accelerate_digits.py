"""Hugging Face accelerate: `for_accelerate` in place of `prepare`; checkpoints have the loader.

    torchrun --nproc_per_node 2 examples/accelerate_digits.py    # 2 processes
    python examples/accelerate_digits.py --short    # one process, fewer epochs, a quick check

On GPUs, ``accelerate launch --multi_gpu`` does the same as torchrun. ``accelerate launch --cpu``
starts a single process, whatever ``--num_processes`` says.

`prepare` changes only torch's own loaders. This one deals out the samples and moves the batches by
itself, and tells accelerate of the last batch, which `gather_for_metrics` asks for.
`register_for_checkpointing` has `save_state` save where it stands.
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from digits import NB_TEST, Digits, make_model
from torch import nn

from swift_loader import SwiftLoader
from swift_loader.integrations.accelerate import AccelerateLoader, for_accelerate

WANTED_ACCURACY = 0.93


def make_loader(accelerator: Accelerator, train: bool) -> AccelerateLoader:
    loader = SwiftLoader(Digits, {"train": train}, batch_size=32, shuffle=train, nearby_shuffle=0)
    return for_accelerate(loader, accelerator)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--short", action="store_true", help="8 epochs instead of 16")
    args = parser.parse_args()

    # Without GPUs, it sees the processes of torchrun only if it is told to use the CPU.
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    plain = make_model()
    model, optimizer = accelerator.prepare(plain, torch.optim.Adam(plain.parameters(), lr=2e-3))
    train_loader = make_loader(accelerator, train=True)
    test_loader = make_loader(accelerator, train=False)
    accelerator.register_for_checkpointing(train_loader)

    accuracy = 0.0
    for epoch in range(8 if args.short else 16):
        for images, labels in train_loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        right = []
        with torch.no_grad():
            for images, labels in test_loader:
                found = model(images).argmax(dim=1) == labels
                right.append(accelerator.gather_for_metrics(found))
        of_all = torch.cat(right)
        assert len(of_all) == NB_TEST  # each once: none twice, none left out
        accuracy = of_all.float().mean().item()
        accelerator.print(f"epoch {epoch + 1}: {accuracy:.1%} right")
    train_loader.close()
    test_loader.close()
    accelerator.end_training()
    if accuracy < WANTED_ACCURACY:
        raise SystemExit(f"test accuracy {accuracy:.1%}, wanted {WANTED_ACCURACY:.0%}")


if __name__ == "__main__":
    main()
