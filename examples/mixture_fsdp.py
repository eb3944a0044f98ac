"""A small language model on two sources, sharded by FSDP2: stopped, it goes on with fewer ranks.

    torchrun --nproc-per-node 3 examples/mixture_fsdp.py --checkpoint lm --steps 20
    torchrun --nproc-per-node 2 examples/mixture_fsdp.py --checkpoint lm --steps 20   # goes on

The sources are the code of Python's standard library and its docstrings, three parts to one, each
packed into sequences of one length.
`torch.distributed.checkpoint` saves the model, the optimizer and the loader together: the loader
has `state_dict` and `load_state_dict`, which is all that it asks for. The 2 ranks then get exactly
the sequences that the 3 had not had, in the mixture's own order.
"""

from __future__ import annotations

import argparse
import ast
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from swift_loader import Mixture, Packed, Source, SwiftLoader

NB_BYTES = 256  # the vocabulary


def texts(kind: str) -> Iterator[bytes]:
    """The library's modules (kind "code"), or the docstrings in them (kind "docs")."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        code = path.read_bytes()
        if kind == "code":
            yield code
            continue
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                yield (ast.get_docstring(node) or "").encode()


class Texts:
    """The texts of one kind as documents: arrays of bytes."""

    def __init__(self, kind: str) -> None:
        self.texts = [np.frombuffer(text, np.uint8) for text in texts(kind) if text]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Any:
        return self.texts[index]


def packed(kind: str, length: int) -> Packed:
    """Sequences of `length` bytes and the one that follows; a zero ends each document."""
    return Packed(Texts(kind), length + 1, separator=0, fields=["tokens"])


class ByteModel(nn.Module):
    """Two layers of attention would do better; this one is quick."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NB_BYTES, width)
        self.hidden = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.scores = nn.Linear(width, NB_BYTES)

    def forward(self, x: Tensor) -> Tensor:
        before = self.embedding(x)
        scores: Tensor = self.scores(before + self.hidden(before))
        return scores


class Training:
    """Model and optimizer for `torch.distributed.checkpoint`, whole on whatever ranks."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


def train(args: argparse.Namespace) -> None:
    rank, nb_ranks = dist.get_rank(), dist.get_world_size()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = init_device_mesh(device, (nb_ranks,), mesh_dim_names=("dp",))
    torch.manual_seed(1)
    model = ByteModel(args.width).to(device)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    mix = Mixture(
        {
            "code": Source(packed, {"kind": "code", "length": args.length}, 3, tokens=args.length),
            "docs": Source(packed, {"kind": "docs", "length": args.length}, 1, tokens=args.length),
        }
    )
    with SwiftLoader(
        mix, batch_size=args.batch_size, nb_consumer=nb_ranks, worker_per_consumer=1,
        shuffle=True, seed=1,
    ) as loader:  # fmt: skip
        parts = {"training": Training(model, optimizer), "loader": loader}
        if Path(args.checkpoint, ".metadata").exists():
            load(parts, checkpoint_id=args.checkpoint)
            print(f"rank {rank} goes on", flush=True)
        loader.start(mesh=mesh["dp"], device=device)
        losses: list[float] = []
        while len(losses) < args.steps:
            for batch in loader:
                x, y = batch["tokens"][:, :-1], batch["tokens"][:, 1:]
                loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                losses.append(loss.item())
                if len(losses) == args.steps:
                    break
        save(parts, checkpoint_id=args.checkpoint)
        sources = loader.stats().sources
    tokens = {name: source.tokens for name, source in sources.items()}
    print(f"rank {rank}: loss {losses[0]:.3f} to {losses[-1]:.3f}, tokens {tokens}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--checkpoint", required=True, help="a folder; goes on from what is there")
    parser.add_argument("--steps", type=int, default=50, help="how many more")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=128, help="bytes in a sequence")
    parser.add_argument("--width", type=int, default=64, help="of the network")
    args = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    try:
        train(args)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
