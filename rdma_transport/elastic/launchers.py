"""This launcher's part in an elastic job: the first one decides, and others join it."""

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from rdma_transport.elastic.discovery import Discovery
from rdma_transport.elastic.greeting import Hello, answering, join
from rdma_transport.elastic.leader import Leader, Limits
from rdma_transport.errors import BadInputError
from rdma_transport.slurm import Step
from rdma_transport.sockets import listening


@dataclass(frozen=True)
class Part:
    """What a launcher needs to start its ranks."""

    connection: socket.socket
    """To the leader."""
    name: str
    """The launcher that decides, in messages."""
    starts: list[Step]


@dataclass(frozen=True)
class Launcher:
    """Where launchers meet: launcher `node` of `nodes` with which the job begins.

    Without `host`, an address of the first one's, no others can join.
    """

    node: int
    nodes: int
    host: str
    port: int


@contextlib.contextmanager
def taking_part(
    launcher: Launcher, ranks: int, limits: Limits, discovery: Discovery | None = None
) -> Iterator[Part]:
    """Decide, in the first launcher, or connect to the one that does.

    With `discovery`, the first launcher starts others instead of ranks.
    """
    if launcher.node:
        hello = Hello(launcher.node, ranks)
        connection, starts = join(hello, launcher.host, launcher.port, limits.start_timeout)
        yield Part(connection, f"the launcher at {launcher.host}:{launcher.port}", starts)
        return
    host = launcher.host or "127.0.0.1"
    own, connection = socket.socketpair()
    nodes = discovery.begin() if discovery else dict.fromkeys(range(launcher.nodes), ranks)
    leader = Leader(limits, own, host, nodes)
    with contextlib.ExitStack() as stack:
        if launcher.host:
            leader.listen(_listening(launcher))
        if discovery:
            discovery.start(leader.list_nodes)
            stack.callback(discovery.end)
        leader.start()
        stack.callback(leader.join)
        stack.callback(connection.close)
        size, here = sum(nodes.values()), nodes.get(0, 0)
        starts = [Step(rank, size, rank, here, 0, 1, host, leader.job) for rank in range(here)]
        yield Part(connection, "the first launcher", starts)


def _listening(launcher: Launcher) -> socket.socket:
    try:
        answering()
        return listening(launcher.host, launcher.port)
    except ValueError as error:
        raise BadInputError(str(error)) from None
    except OSError as error:
        raise BadInputError(
            f"cannot listen at {launcher.host}:{launcher.port}: {error.strerror or error}. Give an "
            "address of this host by --master-addr and a free port by --master-port"
        ) from None
