"""The servers of this user that run on this host, and what their transports did."""

import json
import os
import re
import socket
from dataclasses import dataclass
from typing import Any

from rdma_transport.stats import readable

_NAME = re.compile(r"@rdma_transport\.status\.(\d+)\.(\d+)$")
_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True)
class LiveServer:
    """A process with an ``rdma`` server; ``pid`` is its own, ``user`` the number of its user."""

    pid: int
    user: int

    def stats(self) -> dict[str, Any]:
        """Return what ``rdma_transport.stats()`` gives there.

        Raises ``ConnectionError`` where the process is gone, is another user's, or does not answer
        within 5 seconds.
        """
        text = b""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(_PATIENCE_SECONDS)
                connection.connect(f"\0rdma_transport.status.{self.user}.{self.pid}")
                while part := connection.recv(1 << 16):
                    text += part
        except OSError as error:
            raise ConnectionError(
                f"process {self.pid} does not answer ({error}); has it ended, or is it stopped?"
            ) from error
        if not text:
            raise ConnectionError(f"process {self.pid} is another user's, and answers only to him")
        return readable(json.loads(text))


def servers() -> list[LiveServer]:
    """Return the servers whose status can be asked for, by pid; Linux's list of local sockets."""
    found = set()
    with open("/proc/net/unix") as sockets:
        for line in sockets:
            match = _NAME.search(line.strip())
            if match:
                found.add(LiveServer(pid=int(match[2]), user=int(match[1])))
    mine = [server for server in found if server.user == os.geteuid() or os.geteuid() == 0]
    return sorted(mine, key=lambda server: server.pid)
