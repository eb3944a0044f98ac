"""Samples out of a bucket, by coroutines, and kept: the network's latency is paid once.

    python examples/bucket.py            # a local server that answers after 30 ms
    python examples/bucket.py --short    # fewer objects, for a quick check
    python examples/bucket.py --url s3://bucket/folder --n 1000    # objects 0 to 999 of your own

The data set reads each object by fsspec: ``https://`` works with this example's requirements,
``s3://`` needs s3fs beside them, ``gs://`` gcsfs. Every worker has up to 256 requests under way,
for batches that are still to come, and no object is asked for twice.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fsspec
import numpy as np
import torch
from aiohttp import web
from torch import Tensor

from swift_loader import SwiftLoader

LATENCY_S = 0.03
SIDE = 180  # an object is SIDE * SIDE * 3 bytes: about 100 KB


class Objects:
    """Object `i` of a bucket as an image: uint8, shape ``[SIDE, SIDE, 3]``."""

    def __init__(self, url: str, n: int) -> None:
        self.url, self.n = url, n
        self.opened: asyncio.Task[tuple[Any, str]] | None = None

    def __len__(self) -> int:
        return self.n

    async def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self.opened is None:  # in the worker's event loop: one session for all requests
            self.opened = asyncio.create_task(self.open())
        files, folder = await self.opened
        data = await files._cat_file(f"{folder}/{index}")
        return torch.from_numpy(np.frombuffer(data, np.uint8).copy()).view(SIDE, SIDE, 3), index

    async def open(self) -> tuple[Any, str]:
        """The file system behind the address, with a session, and what it calls the folder."""
        files, folder = fsspec.core.url_to_fs(self.url, asynchronous=True, skip_instance_cache=True)
        await files.set_session()
        return files, folder


def augment(sample: tuple[Tensor, int]) -> tuple[Tensor, int]:
    """What is random comes after the cache."""
    image, index = sample
    return (image.flip(1) if random.random() < 0.5 else image), index


@contextmanager
def bucket(latency_s: float) -> Iterator[tuple[str, list[int]]]:
    """A local server in a thread: its address, and the objects that were asked for."""
    asked: list[int] = []
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    port: list[int] = []

    async def answer(request: web.Request) -> web.Response:
        index = int(request.match_info["index"])
        asked.append(index)
        await asyncio.sleep(latency_s)
        return web.Response(body=bytes([index % 251]) * (SIDE * SIDE * 3))

    async def serve() -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/{index}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port.append(runner.addresses[0][1])
        ready.set()
        return runner

    def run() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(serve())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run, name="bucket")
    thread.start()
    ready.wait()
    try:
        yield f"http://127.0.0.1:{port[0]}", asked
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def train(url: str, n: int, epochs: int) -> list[float]:
    """Seconds of each epoch."""
    times = []
    with SwiftLoader(
        Objects,
        {"url": url, "n": n},
        batch_size=16,
        worker_per_consumer=2,
        shuffle=True,
        transform=augment,
        cache="1GB",
        validate=False,
    ) as loader:
        loader.start()
        for epoch in range(epochs):
            began_s = time.perf_counter()
            seen = 0
            for images, indices in loader:
                assert (images[:, 0, 0, 0] == indices % 251).all()
                seen += len(indices)
            times.append(time.perf_counter() - began_s)
            print(f"epoch {epoch}: {seen} objects in {times[-1]:.2f} s")
            assert seen == n
        print(loader.stats().cache)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--url")
    parser.add_argument("--n", type=int)
    options = parser.parse_args()
    if options.url:
        train(options.url, options.n or 1000, 3)
        return
    n = options.n or (200 if options.short else 2000)
    with bucket(LATENCY_S) as (url, asked):
        train(url, n, 3)
    print(f"{len(asked)} requests for {n} objects; one after the other: {n * LATENCY_S:.0f} s")
    assert sorted(asked) == list(range(n)), "an object was asked for twice"


if __name__ == "__main__":
    main()
