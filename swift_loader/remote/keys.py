"""The key that endpoints and training processes share: a file, made once, copied to both sides.

It holds two CURVE key pairs (Curve25519, as ZeroMQ's CurveZMQ uses it): the endpoint's, by which a
training process knows that it talks to an endpoint of its own, and the training side's, the only
one that an endpoint lets in. Whoever holds the file can run code on every endpoint that uses it,
and read what is sent; so it is made for its owner's eyes only, and never shown.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq
from zmq.utils import z85

from swift_loader.errors import ConfigError

__all__ = ["KEY_VARIABLE", "Keys", "load_keys"]

KEY_VARIABLE = "SWIFT_LOADER_KEY"
_MARK = "swift-loader-key-1"
_NOTE = "# A secret: whoever holds it can run code on the endpoints that use it.\n"


@dataclass(frozen=True, repr=False)
class Keys:
    """Both key pairs, in Z85. Its repr shows a fingerprint, nothing else."""

    server_public: bytes
    server_secret: bytes
    client_public: bytes
    client_secret: bytes

    @classmethod
    def generate(cls) -> Keys:
        """New ones."""
        if not zmq.has("curve"):
            raise ConfigError(
                "this build of ZeroMQ has no CURVE: install pyzmq from its wheels (pip install "
                "--force-reinstall --only-binary=:all: pyzmq)"
            )
        return cls(*zmq.curve_keypair(), *zmq.curve_keypair())

    def write(self, path: str | os.PathLike[str]) -> None:
        """Into a new file that only its owner can read. Raises `ConfigError` if it exists."""
        text = _NOTE + self._text() + "\n"
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise ConfigError(
                f"{os.fspath(path)} exists, and a key that is in use must not be lost: "
                "give another name, or remove it first"
            ) from None
        except OSError as error:
            raise ConfigError(f"the key can't be written: {error}") from None
        with os.fdopen(fd, "w") as file:
            file.write(text)

    @classmethod
    def parse(cls, text: str, origin: str) -> Keys:
        """From what `write` wrote. Raises `ConfigError`, which shows nothing of it."""
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        parts = lines[0].split() if len(lines) == 1 else []
        if len(parts) != 5 or parts[0] != _MARK or any(not _is_key(part) for part in parts[1:]):
            raise ConfigError(f"{origin} is no key: make one by `swift-loader keygen FILE`")
        return cls(*(part.encode() for part in parts[1:]))

    @property
    def fingerprint(self) -> str:
        """Tells keys apart, and tells nothing about them."""
        return hashlib.sha256(self.server_public + self.client_public).hexdigest()[:8]

    def secure_server(self, socket: zmq.Socket[Any], domain: bytes) -> None:
        """Only peers that prove to hold this key get through; `domain` is for the gate."""
        socket.curve_server = True
        socket.curve_publickey = self.server_public
        socket.curve_secretkey = self.server_secret
        socket.zap_domain = domain

    def secure_client(self, socket: zmq.Socket[Any]) -> None:
        """Talk to nobody but an endpoint that proves to hold this key."""
        socket.curve_serverkey = self.server_public
        socket.curve_publickey = self.client_public
        socket.curve_secretkey = self.client_secret

    def _text(self) -> str:
        parts = (self.server_public, self.server_secret, self.client_public, self.client_secret)
        return " ".join([_MARK, *(part.decode() for part in parts)])

    def __repr__(self) -> str:
        return f"Keys({self.fingerprint})"


def load_keys(key: str | os.PathLike[str] | None, option: str = "remote_key") -> Keys | None:
    """The keys in the file `key`; without one, those that `SWIFT_LOADER_KEY` gives, if set.

    The variable holds the path of a key file, or the key's line itself.

    Raises `ConfigError`: no such file, no key in it, or a file that every user can read.
    """
    if key is None:
        text = os.environ.get(KEY_VARIABLE, "")
        if text.startswith(_MARK):
            return Keys.parse(text, f"what {KEY_VARIABLE} holds")
        if not text:
            return None
        key, option = text, KEY_VARIABLE
    path = Path(key)
    try:
        mode = path.stat().st_mode
        text = path.read_text()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{option}={os.fspath(key)!r} can't be read ({type(error).__name__}): give the file "
            "that `swift-loader keygen FILE` made"
        ) from None
    if mode & stat.S_IROTH:
        raise ConfigError(
            f"{option}={os.fspath(key)!r} can be read by every user of this machine, so it keeps "
            f"nobody out: chmod 600 {os.fspath(key)}, or make a new key if that may have happened"
        )
    return Keys.parse(text, f"{option}={os.fspath(key)!r}")


def _is_key(text: str) -> bool:
    try:
        return len(text) == 40 and len(z85.decode(text.encode())) == 32
    except (KeyError, ValueError):
        return False
