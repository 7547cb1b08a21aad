"""Ports and listeners."""

import errno
import socket


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port at which no one listens; of all addresses of this host if `host` is empty."""
    with socket.socket() as sock:
        sock.bind((host, 0))
        port: int = sock.getsockname()[1]
        return port


def listening(host: str, port: int) -> socket.socket:
    """Return a listener at an address of this host; raise ``OSError``."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if str(address[0]).startswith("127.") and not host.startswith(("127.", "localhost")):
            # Many hosts, such as Debian's, give their own name a loopback address.
            return socket.create_server(("", port), backlog=128)
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:  # an address of this host that it does not see
            return socket.create_server(("", port), backlog=128)
        raise
