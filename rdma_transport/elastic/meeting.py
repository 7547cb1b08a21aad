"""Connections of the launchers of an elastic job, to its ranks and to each other: lines of JSON."""

import contextlib
import json
import selectors
import socket
import time
from typing import Any

_LINE = 1 << 16  # bytes
_SEND = 1.0  # seconds


class Line:
    """A connection. `since`: when it was made, of ``time.monotonic()``."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.since = time.monotonic()
        self._rest = b""
        connection.settimeout(_SEND)

    def send(self, **message: Any) -> None:
        """Send a message, which is lost if the other end has gone."""
        with contextlib.suppress(OSError):
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]]:
        """Return messages that have arrived; the last one is empty if the other end has gone."""
        try:
            more = self.socket.recv(_LINE)
        except OSError:
            more = b""
        *lines, self._rest = (self._rest + more).split(b"\n")
        found: list[dict[str, Any]] = []
        try:
            for line in lines:
                message = json.loads(line)
                if not isinstance(message, dict) or not message:
                    raise ValueError("no message")
                found.append(message)
        except ValueError:
            more = b""
        return found if more and len(self._rest) <= _LINE else [*found, {}]


class Meeting:
    """Listeners and connections of one thread."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._listeners: list[socket.socket] = []
        self.lines: list[Line] = []

    def listen(self, listener: socket.socket) -> None:
        """Take calls at a listener, which is closed with this meeting."""
        listener.setblocking(False)
        self._listeners.append(listener)
        self._selector.register(listener, selectors.EVENT_READ)

    def add(self, connection: socket.socket) -> Line:
        """Take messages from a connection, too, which is closed with this meeting."""
        line = Line(connection)
        self.lines.append(line)
        self._selector.register(connection, selectors.EVENT_READ, line)
        return line

    def receive(self, seconds: float) -> list[tuple[Line, dict[str, Any]]]:
        """Wait for messages; return them with where they came from.

        That of a connection whose other end has gone is empty, and the last one.
        """
        found: list[tuple[Line, dict[str, Any]]] = []
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                listener: Any = key.fileobj
                with contextlib.suppress(OSError):
                    self.add(listener.accept()[0])
                continue
            for message in key.data.receive():
                found.append((key.data, message))
                if not message:
                    self.drop(key.data)
        return found

    def drop(self, line: Line) -> None:
        """Close a connection."""
        if line in self.lines:
            self.lines.remove(line)
            self._selector.unregister(line.socket)
            line.socket.close()

    def close(self) -> None:
        """Close all connections."""
        for line in list(self.lines):
            self.drop(line)
        for listener in self._listeners:
            listener.close()
        self._selector.close()
