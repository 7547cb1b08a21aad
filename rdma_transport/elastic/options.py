"""What the options of ``rdma-transport run`` mean for an elastic job."""

import os
import socket
from collections.abc import Mapping

from rdma_transport.elastic.discovery import Listing
from rdma_transport.elastic.launchers import Launcher
from rdma_transport.elastic.leader import Limits
from rdma_transport.errors import BadInputError
from rdma_transport.slurm import Step, port_of

MOST = 1024
"""Ranks of a job."""


def launcher_of(
    step: Step | None,
    listed: bool,
    nnodes: int,
    node_rank: int | None,
    master_addr: str,
    master_port: int,
    environment: Mapping[str, str] = os.environ,
) -> Launcher:
    """Return which launcher this is: a task of srun, or as the options say.

    `listed`: it starts those on listed hosts.
    """
    if listed:
        if nnodes > 1 or node_rank:
            raise BadInputError("listed hosts have launchers of their own: omit --nnodes")
        return Launcher(0, 0, master_addr or socket.gethostname(), master_port)
    if step and step.size > 1:
        if step.local_size > 1:
            raise BadInputError(
                "with --elastic, one task of srun starts the ranks of its node: use "
                "srun --ntasks-per-node=1, and --ranks for their number"
            )
        host = environment.get("MASTER_ADDR", step.host)
        port = environment.get("MASTER_PORT", str(port_of(f"{os.getuid()} {step.job}")))
        return Launcher(step.rank, step.size, host, int(port))
    if nnodes == 1 and not master_addr and not node_rank:
        return Launcher(0, 1, "", 0)
    if node_rank is None or not master_addr:
        raise BadInputError(
            "an elastic job of several hosts needs --node-rank, 0 on the host that decides and "
            "another number on each other one, and --master-addr, an address of host 0"
        )
    return Launcher(node_rank, nnodes, master_addr, master_port)


def limits_of(
    launcher: Launcher,
    ranks: int | None,
    least: int | None,
    most: int | None,
    restarts: int | None,
    start_timeout: int | None,
) -> tuple[int, Limits]:
    """Return how many ranks a launcher starts, and what the job may do."""
    alone = not launcher.host
    here = ranks or (most if alone and most else 2)
    first = here * launcher.nodes
    most, least = most or (first if alone else MOST), least or 1
    if least > most or (not launcher.node and launcher.nodes and not least <= first <= most):
        raise BadInputError(
            f"an elastic job begins with {first} ranks (--ranks), which must not be fewer than "
            f"--min {least}, nor more than --max {most}"
        )
    if alone and most > first:
        raise BadInputError(
            f"--max {most} is more than --ranks {first}, and no other host can join: give "
            "--master-addr and --node-rank 0, or list hosts"
        )
    from rdma_transport import _collectives  # takes long

    seconds = _collectives.start_timeout() if start_timeout is None else start_timeout
    return here, Limits(least, most, 3 if restarts is None else restarts, seconds)


def listing_of(file: str, script: str, launch_with: str, ranks: int | None) -> Listing | None:
    """Return where hosts are listed, if they are."""
    if file and script:
        raise BadInputError("give --hostfile or --host-discovery-script, not both")
    return Listing(file, script, ranks or 2, launch_with) if file or script else None
