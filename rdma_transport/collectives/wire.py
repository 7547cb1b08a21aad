"""Connections of the first contact: lines of JSON, and a time to give up."""

import json
import math
import socket
import time
from collections.abc import Callable
from typing import Any, TypeVar

from rdma_transport._fabric import FabricConnectionError

_LINE = 1 << 26  # bytes
_SLICE = 0.2  # seconds
T = TypeVar("T")


class Deadline:
    """When to give up. Another thread may move it."""

    def __init__(self, seconds: float) -> None:
        self.move(seconds)

    def move(self, seconds: float) -> None:
        """Give up in so many seconds from now."""
        self.seconds = seconds
        self._at = time.monotonic() + seconds

    def left(self) -> float:
        """Return how many seconds are left, at least 0."""
        return max(self._at - time.monotonic(), 0)

    def wait(self, call: Callable[[float], T], longest: float = _SLICE) -> T:
        """Call with a timeout until it does not raise ``TimeoutError``, or nothing is left.

        `longest`: how long it may take to find out that the deadline has moved.
        """
        while True:
            try:
                return call(max(min(self.left(), longest), 0.001))
            except TimeoutError:
                if not self.left():
                    raise


class Wire:
    """A connection that carries lines of JSON."""

    def __init__(self, connection: socket.socket, deadline: Deadline) -> None:
        self.deadline = deadline
        self._connection = connection
        self._rest = b""

    def send(self, **message: Any) -> None:
        """Send one message; raise ``OSError``."""
        left = self.deadline.left()
        self._connection.settimeout(max(left, 0.001) if math.isfinite(left) else None)
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        """Return the next message; raise ``OSError`` or ``ValueError``."""
        while b"\n" not in self._rest:
            more = self.deadline.wait(self._read)
            if not more or len(self._rest) > _LINE:
                raise ConnectionError("it closed the connection")
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError("it sent no message")
        if "error" in message:
            raise FabricConnectionError(f"rank 0 refused this rank: {message['error']}")
        return message

    def is_closed(self) -> bool:
        """Whether the other end, which has nothing to say now, has gone."""
        try:
            self._connection.settimeout(0)
            return not self._connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _read(self, timeout: float) -> bytes:
        self._connection.settimeout(timeout)
        return self._connection.recv(65536)
