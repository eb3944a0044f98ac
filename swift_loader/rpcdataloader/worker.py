"""Running a worker, and seeding it."""

from __future__ import annotations

import random

import loguru
import numpy as np
import torch

from swift_loader.remote.binding import check_bind
from swift_loader.remote.endpoint import Endpoint, Options
from swift_loader.remote.keys import load_keys

__all__ = ["run_worker", "set_random_seeds"]


def run_worker(host: str | None, port: int, timeout: float = 120, parallel: int = 1) -> None:
    """Serve at ``host:port`` with `parallel` worker processes, until SIGTERM or SIGINT.

    An endpoint like that of ``swift-loader serve``: whoever may connect may run code here. So a
    `host` beyond this machine (None is every interface) needs a key: `SWIFT_LOADER_KEY`.
    `timeout` is taken and not needed: a connection without life ends within seconds.

    Raises `ConfigError`: no key where one is needed, or the address can't be bound.
    """
    bind = f"tcp://{host or '0.0.0.0'}:{port}"  # nosec
    keys = load_keys(None)
    logger = loguru.logger
    # Every interface is what `None` means in rpcdataloader; without a key it is refused here.
    warning = check_bind(bind, keys, insecure=False)
    if warning:
        logger.warning(warning)
    Endpoint(Options(bind, parallel, keys), logger, lambda address: None).serve()


def set_random_seeds(base_seed: int, worker_id: int) -> None:
    """Seed `random`, `numpy` and `torch` in a worker, differently for each `worker_id`.

    The draws of a loader's datasets don't need it: they are seeded for each batch.
    """
    words = np.random.SeedSequence([base_seed, worker_id]).generate_state(6)
    random.seed(int.from_bytes(words[:2].tobytes(), "little"))
    torch.manual_seed(int.from_bytes(words[2:4].tobytes(), "little") % 2**63)
    np.random.seed(words[4:])
