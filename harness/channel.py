"""Messages between a front end and a zygote: JSON, each after its length, over a socket."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("!Q")


class Channel:
    """
    One end of a socket pair that carries whole JSON messages.

    Not to be shared between threads.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._socket.fileno()

    def send(self, message: Any) -> None:
        """Send one message. Raises: OSError: the other end is gone."""
        data = json.dumps(message).encode()
        self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> Any:
        """Return the next message. Raises: EOFError: the other end is gone."""
        (size,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        return json.loads(self._exactly(size))

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self._socket.recv(min(size - len(data), 1 << 20))
            except ConnectionResetError:
                part = b""
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()
