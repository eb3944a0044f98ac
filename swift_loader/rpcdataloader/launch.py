"""``python -m swift_loader.rpcdataloader.launch`` runs a worker."""

from __future__ import annotations

import argparse
import sys

from swift_loader.errors import ConfigError
from swift_loader.remote.commands import serve_until_told


def main() -> int:
    """Serve until told to end; returns the exit status."""
    parser = argparse.ArgumentParser(
        "swift_loader.rpcdataloader.launch",
        description="Run a worker; prints host:port when it is ready. Beyond this machine it needs "
        "a key: SWIFT_LOADER_KEY=FILE, from `swift-loader keygen FILE`.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (127.0.0.1)")
    parser.add_argument("--port", type=int, default=0, help="port to bind (0: any free one)")
    parser.add_argument("--timeout", type=int, default=60, help="taken, and not needed")
    parser.add_argument("--parallel", type=int, default=1, help="worker processes (1)")
    options = parser.parse_args()
    try:
        serve_until_told(f"tcp://{options.host}:{options.port}", options.parallel, None)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
