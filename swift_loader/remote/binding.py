"""The socket that an endpoint listens on, and who may be let in by it."""

from __future__ import annotations

import os
import sys
from typing import Any

import zmq

from swift_loader.errors import ConfigError
from swift_loader.remote.gate import DOMAIN
from swift_loader.remote.keys import Keys
from swift_loader.remote.messages import LONGEST_FRAME_BYTES

__all__ = ["bind", "check_bind"]

_BEAT_S = 1.0
_LIFE_S = 10.0  # without a sign of life, a connection is taken for dead
_SHAKE_S = 10.0  # for a peer to prove that it holds the key
_KNOWS_USERS = sys.platform == "linux"  # of the peers of a Unix socket
_UNREAD_FRAMES = 4096  # of one training process that does not read; then its session ends


def check_bind(bind: str, keys: Keys | None, insecure: bool) -> str:
    """What to warn of, or nothing. Raises `ConfigError` for a bind that would let everybody in."""
    scheme, _, rest = bind.partition("://")
    if scheme not in ("tcp", "ipc") or not rest or (scheme == "tcp" and ":" not in rest):
        raise ConfigError(f"--bind {bind!r}: give it as tcp://address:port (port 0: any free one)")
    if keys is not None:
        return ""
    host = rest.rpartition(":")[0].strip("[]")
    if scheme == "tcp" and host not in ("127.0.0.1", "localhost", "::1"):
        if not insecure:
            raise ConfigError(
                f"--bind {bind} without --key: whoever can reach this address could run any code "
                "here as you, and read what is sent. Make a key by `swift-loader keygen FILE`, "
                "give it to both sides by --key FILE and remote_key=FILE. On a network where "
                "you trust everybody, --insecure binds all the same"
            )
        return "no key: whoever can reach this address can run any code here as you"
    if scheme == "ipc" and _KNOWS_USERS:
        return ""  # nobody is let in who could not run code here anyway
    return (
        "no key: every user and every process of this machine can run any code here as you; "
        "--key FILE keeps them out"
    )


def bind(router: zmq.Socket[Any], address: str, keys: Keys | None) -> str:
    """Let `router` listen at `address`, to holders of `keys`. Returns where it does.

    Raises `ConfigError` when the address can't be bound.
    """
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.setsockopt(zmq.SNDHWM, _UNREAD_FRAMES)
    router.setsockopt(zmq.RCVHWM, 0)
    router.setsockopt(zmq.MAXMSGSIZE, LONGEST_FRAME_BYTES)
    router.setsockopt(zmq.HANDSHAKE_IVL, int(_SHAKE_S * 1000))
    router.setsockopt(zmq.HEARTBEAT_IVL, int(_BEAT_S * 1000))
    router.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(_LIFE_S * 1000))
    router.setsockopt(zmq.IPV6, int("[" in address))
    if keys is not None:
        keys.secure_server(router, DOMAIN)
    if address.startswith("ipc://") and _KNOWS_USERS:
        for user in {0, os.geteuid()}:  # of others nothing is read, whatever the folder permits
            router.setsockopt(zmq.IPC_FILTER_UID, user)
    try:
        router.bind(address)
    except zmq.ZMQError as error:
        raise ConfigError(f"--bind {address}: {error.strerror}") from None
    bound = router.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(bound, bytes)
    return bound.rstrip(b"\0").decode()
