"""How two commands on two hosts find each other: one listens, the other one connects."""

import socket
import time


class NobodyCameError(Exception):
    """The other side was not there in time."""


def reach(host: str, port: int, seconds: float) -> socket.socket:
    """Connect to who listens there, once somebody does; NobodyCameError after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection((host, port), 2)
        except OSError as error:
            if time.monotonic() > deadline:
                raise NobodyCameError(f"nobody listens on {host}:{port}: {error}") from None
            time.sleep(0.1)


def listening(host: str, port: int) -> socket.socket:
    """A socket on which others can connect; OSError says why there is none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def received(server: socket.socket, seconds: float) -> socket.socket:
    """The first who connects; NobodyCameError after `seconds`."""
    server.settimeout(seconds)
    try:
        connection, _ = server.accept()
    except TimeoutError:
        host, port = server.getsockname()[:2]
        raise NobodyCameError(f"nobody connected to {host}:{port}") from None
    return connection


def read_line(connection: socket.socket, most: int = 2**16) -> bytes:
    """The next line, and not a byte after it; what there was if the connection ended."""
    line = b""
    while not line.endswith(b"\n") and len(line) < most:
        byte = connection.recv(1)
        if not byte:
            break
        line += byte
    return line
