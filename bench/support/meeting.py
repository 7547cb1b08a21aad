"""Connects two commands on two hosts: one listens, the other one connects."""

import socket
import time


class NobodyCameError(Exception):
    """The other side did not connect in time."""


def reach(host: str, port: int, seconds: float) -> socket.socket:
    """Connect as soon as a process listens there; raise NobodyCameError after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection((host, port), 2)
        except OSError as error:
            if time.monotonic() > deadline:
                raise NobodyCameError(f"no process listens on {host}:{port}: {error}") from None
            time.sleep(0.1)


def listening(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise OSError if there is none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def received(server: socket.socket, seconds: float) -> socket.socket:
    """Return the first connection; raise NobodyCameError after `seconds`."""
    server.settimeout(seconds)
    try:
        connection, _ = server.accept()
    except TimeoutError:
        host, port = server.getsockname()[:2]
        raise NobodyCameError(f"no process connected to {host}:{port}") from None
    return connection


def read_line(connection: socket.socket, most: int = 2**16) -> bytes:
    """Read one line and no byte after it; less if the connection ends."""
    line = b""
    while not line.endswith(b"\n") and len(line) < most:
        byte = connection.recv(1)
        if not byte:
            break
        line += byte
    return line
