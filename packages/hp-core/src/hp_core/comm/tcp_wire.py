# SPDX-License-Identifier: Apache-2.0
"""What goes over the connections of `hp_core.comm.tcp_store`: one frame asks, one frame answers.

A frame is a header (what it is, seconds to wait, the lengths of the key and of the value), the key and the value.
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

#: Both sides say this first: whoever listens at the port may be another program.
HELLO = b"hp-store 1\n"
SET, SET_ONCE, GET, CHECK = range(4)
FOUND, ABSENT = 0, 1

_HEADER = struct.Struct("<BdIQ")
_MAX_KEY_BYTES = 1 << 16
_MAX_VALUE_BYTES = 1 << 30


class Frame(NamedTuple):
    """A question (``SET`` …) or an answer (``FOUND``, ``ABSENT``)."""

    kind: int
    key: str = ""
    value: bytes = b""
    wait_s: float = 0.0


def send_frame(connection: socket.socket, frame: Frame) -> None:
    """Send one frame; ``OSError`` when the other side has gone."""
    key = frame.key.encode()
    connection.sendall(_HEADER.pack(frame.kind, frame.wait_s, len(key), len(frame.value)) + key + frame.value)


def receive_frame(connection: socket.socket) -> Frame:
    """Wait for one frame.

    Raises:
        ConnectionError: the other side has gone, or does not speak this protocol.
    """
    kind, wait_s, key_bytes, value_bytes = _HEADER.unpack(receive_exactly(connection, _HEADER.size))
    if key_bytes > _MAX_KEY_BYTES or value_bytes > _MAX_VALUE_BYTES:
        raise ConnectionError("what came is no frame of the store")
    key = receive_exactly(connection, key_bytes).decode()
    return Frame(kind, key, receive_exactly(connection, value_bytes), wait_s)


def receive_exactly(connection: socket.socket, num_bytes: int) -> bytes:
    """Return the next ``num_bytes``.

    Raises:
        ConnectionError: the other side has gone.
    """
    parts, missing = [], num_bytes
    while missing:
        part = connection.recv(min(missing, 1 << 20))
        if not part:
            raise ConnectionError("the connection was closed by the other side")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
