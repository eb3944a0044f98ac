"""A byte-level language model on the text of Python's own standard library, with resume.

    python examples/byte_lm.py                        # half of the steps, a stop, the other half
    python examples/byte_lm.py --checkpoint lm.pt     # keeps the checkpoint: run again for more
    python examples/byte_lm.py --short                # fewer steps, for a quick check

The text is gathered into one file once, and the workers read it through `numpy.memmap`: they share
its pages, whatever its size. In the middle of the epoch everything is dropped and built again from
a checkpoint, as after a crash. The loader's part of the checkpoint is `loader.state_dict()`: it
says which batches were delivered, whatever was prefetched, so the rest of the epoch comes exactly
as it would have come without the stop.
"""

from __future__ import annotations

import argparse
import sysconfig
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from swift_loader import SwiftLoader

NB_BYTES = 256  # the vocabulary
PRINT_EVERY = 10  # steps


def gather_text(file: Path) -> None:
    """Write the standard library's sources into one file, in an order that is always the same."""
    library = Path(sysconfig.get_path("stdlib"))
    elsewhere = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}
    with file.open("wb") as out:
        for source in sorted(library.rglob("*.py")):
            if not elsewhere.intersection(source.relative_to(library).parts):
                out.write(source.read_bytes())


class Windows:
    """Consecutive windows of the text: `(x, y)`, int64 of shape [length], `y` one byte further."""

    def __init__(self, file: Path, length: int) -> None:
        self.text = np.memmap(file, dtype=np.uint8, mode="r")  # opened in the worker
        self.length = length

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        begin = index * self.length
        window = torch.from_numpy(self.text[begin : begin + self.length + 1].astype(np.int64))
        return window[:-1], window[1:]


class ByteModel(nn.Module):
    """Embedding, one GRU, and a score for every byte that may come next."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NB_BYTES, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.scores = nn.Linear(width, NB_BYTES)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.gru(self.embedding(x))
        scores: Tensor = self.scores(hidden)
        return scores


def train(text: Path, checkpoint: Path, until_step: int, args: argparse.Namespace) -> list[float]:
    """Train up to `until_step`, from `checkpoint` where there is one, and save there.

    Returns the losses of all steps so far, in nats a byte.
    """
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = ByteModel(args.width).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses: list[float] = []

    with SwiftLoader(
        dataset_class=Windows,
        dataset_kwargs={"file": text, "length": args.length},
        batch_size=args.batch_size,
        worker_per_consumer=2,
        shuffle=True,
        nearby_shuffle=0,  # 0: a full shuffle
        seed=1,
    ) as loader:
        if checkpoint.exists():
            saved = torch.load(checkpoint, map_location=device, weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])
            losses = saved["losses"]
            print(f"goes on from step {len(losses)}", flush=True)
        loader.start(consumer_index=0, device=device)

        while len(losses) < until_step:
            for x, y in loader:  # after a resume: what is left of the epoch
                loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                losses.append(loss.item())
                if len(losses) % PRINT_EVERY == 0:
                    recent = np.mean(losses[-PRINT_EVERY:])
                    print(f"step {len(losses):4d}/{until_step}  loss {recent:.3f}", flush=True)
                if len(losses) == until_step:
                    progress = {
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "loader": loader.state_dict(),
                        "losses": losses,
                    }
                    torch.save(progress, checkpoint)
                    break
        print(f"what the loader did:\n{loader.stats()}", flush=True)
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=400, help="how many more")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--length", type=int, default=128, help="bytes in a window")
    parser.add_argument("--width", type=int, default=256, help="of the network")
    parser.add_argument("--checkpoint", type=Path, help="kept; goes on from it where it exists")
    parser.add_argument("--short", action="store_true", help="60 steps, smaller in all")
    args = parser.parse_args()
    if args.short:
        args.steps, args.width, args.length = 60, 128, 64

    with tempfile.TemporaryDirectory() as temporary:
        text = Path(temporary) / "text"
        gather_text(text)
        print(f"{text.stat().st_size / 1e6:.1f} MB of text", flush=True)
        checkpoint = args.checkpoint or Path(temporary) / "checkpoint.pt"

        already = 0
        if checkpoint.exists():
            already = len(torch.load(checkpoint, weights_only=True)["losses"])
        train(text, checkpoint, already + args.steps // 2, args)
        losses = train(text, checkpoint, already + args.steps, args)

    first, last = np.mean(losses[:PRINT_EVERY]), np.mean(losses[-PRINT_EVERY:])
    print(f"loss of the first {PRINT_EVERY} steps {first:.3f}, of the last {last:.3f}")
    if last >= first:
        raise SystemExit("the loss did not fall")


if __name__ == "__main__":
    main()
