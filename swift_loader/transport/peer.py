"""Who is at the other end of a Unix socket, by the kernel's word."""

from __future__ import annotations

import os
import socket
import struct
import sys

__all__ = ["peer_of", "same_user"]

if sys.platform == "linux":

    def peer_of(sock: socket.socket) -> tuple[int, int]:
        """``(process id, user id)`` of the other end."""
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, _ = struct.unpack("3i", raw)
        return pid, uid

else:  # macOS: LOCAL_PEERPID and LOCAL_PEERCRED of SOL_LOCAL

    def peer_of(sock: socket.socket) -> tuple[int, int]:
        (pid,) = struct.unpack("i", sock.getsockopt(0, 2, 4))
        _, uid = struct.unpack_from("II", sock.getsockopt(0, 1, 76))
        return pid, uid


def same_user(sock: socket.socket) -> bool:
    """Whether the process at the other end is of our own user."""
    return peer_of(sock)[1] == os.geteuid()
