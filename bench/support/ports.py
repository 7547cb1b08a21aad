"""Ports for servers on this host."""

import os
import socket

_claims: list[socket.socket] = []  # held until the end, so that no other process gets them


def free_port() -> int:
    """Return a free port below the range of outgoing connections."""
    while True:
        port = 10000 + int.from_bytes(os.urandom(2), "big") % 20000
        claim = socket.socket(socket.AF_UNIX)
        with socket.socket() as probe:
            try:
                claim.bind(f"\0bench.support.cluster.port.{port}")
                probe.bind(("127.0.0.1", port))
            except OSError:
                claim.close()
                continue
        _claims.append(claim)
        return port
