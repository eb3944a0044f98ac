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
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq
from zmq.utils import z85

from swift_loader.errors import ConfigError

__all__ = ["KEY_VARIABLE", "Keys", "load_keys"]

KEY_VARIABLE = "SWIFT_LOADER_KEY"
_MARK = "swift-loader-key-1"
_OTHERS = stat.S_IRGRP | stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH
_LONGEST_BYTES = 1 << 12
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
        """Into a new file that only its owner can read, as a whole or not at all.

        Raises `ConfigError` if it exists, or can't be written.
        """
        name = os.fsdecode(path)
        if os.path.lexists(name):
            raise ConfigError(
                f"{name} exists, and a key that is in use must not be lost: "
                "give another name, or remove it first"
            )
        unfinished = f"{name}.{os.getpid()}.new"
        try:
            with open(
                os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w"
            ) as file:
                file.write(_NOTE + self._text() + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.rename(unfinished, name)
        except OSError as error:
            Path(unfinished).unlink(missing_ok=True)
            raise ConfigError(f"the key can't be written: {error}") from None

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
    """The keys in the file `key`; without one, in the one that `SWIFT_LOADER_KEY` names, if set.

    Raises `ConfigError`, which shows nothing of a key: no such file, no key in it, or a file that
    others can read or write, or own.
    """
    if key is None:
        key, option = os.environ.get(KEY_VARIABLE, ""), KEY_VARIABLE
        if not key:
            return None
    name = os.fsdecode(key)
    if _MARK in name:
        raise ConfigError(
            f"{option} holds a key itself, which whoever lists processes or reads a log can see: "
            "give the name of the file that it is in, and make a new key if that has happened"
        )
    shown = f"{option}={name!r}"
    try:
        return Keys.parse(_secret_text(name, shown), shown)
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"{shown} can't be read ({type(error).__name__}): give the file that "
            "`swift-loader keygen FILE` made"
        ) from None


def _secret_text(name: str, shown: str) -> str:
    """What a file of this user holds that nobody else can read or write. Never waits."""
    with open(os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise ConfigError(f"{shown} is no plain file: give the one that keygen made")
        if about.st_uid != os.geteuid():
            raise ConfigError(
                f"{shown} belongs to another user (uid {about.st_uid}), who can change it and so "
                f"run code as you: copy it, or chown {os.geteuid()} {name}"
            )
        if about.st_mode & _OTHERS:
            raise ConfigError(
                f"{shown} can be read or written by others (mode {about.st_mode & 0o777:o}), so it "
                f"keeps nobody out: chmod 600 {name}, or make a new key if that may have happened"
            )
        text = file.read(_LONGEST_BYTES)
    if not text.strip():
        raise ConfigError(f"{shown} is empty: remove it, and make a key by `swift-loader keygen`")
    return text.decode()


def _is_key(text: str) -> bool:
    try:
        return len(text) == 40 and len(z85.decode(text.encode())) == 32
    except (KeyError, ValueError, struct.error):  # the last: digits of a number that is too large
        return False
