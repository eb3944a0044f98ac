"""A long line: holds every byte back for a delay, in both directions. Role: the relay's process.

    python -m benchmarks.relay PORT DELAY_S

Relays to that port of this machine until it is terminated, and prints its own port.
"""

from __future__ import annotations

import asyncio
import sys

_READ_BYTES = 1 << 20


async def _relay(port: int, delay_s: float) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(
            _pass_on(reader, far_writer, delay_s), _pass_on(far_reader, writer, delay_s)
        )

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=_READ_BYTES)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float
) -> None:
    loop = asyncio.get_running_loop()
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def arrive() -> None:
        while True:
            due_s, data = await under_way.get()
            if due_s > loop.time():
                await asyncio.sleep(due_s - loop.time())
            if not data:
                writer.close()
                return
            writer.write(data)
            await writer.drain()

    arriving = asyncio.create_task(arrive())
    while True:
        try:
            data = await reader.read(_READ_BYTES)
        except ConnectionError:
            data = b""
        under_way.put_nowait((loop.time() + delay_s, data))
        if not data:
            break
    await asyncio.gather(arriving, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(_relay(int(sys.argv[1]), float(sys.argv[2])))
