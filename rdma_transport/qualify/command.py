"""The command ``rdma-transport qualify``."""

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from rdma_transport.command_line import AsJson, fabric_or, fail, print_json
from rdma_transport.errors import BadInputError

if TYPE_CHECKING:
    from rdma_transport.collectives.ranks import Ranks


def qualify(
    nnodes: Annotated[
        int, typer.Option(help="Give the number of hosts, each of which runs this.", min=2, max=16)
    ] = 2,
    node_rank: Annotated[
        int | None, typer.Option(help="Give the number of this host, from 0.", min=0)
    ] = None,
    master_addr: Annotated[
        str, typer.Option(help="Give an address of host 0 that all reach.")
    ] = "",
    master_port: Annotated[
        int, typer.Option(help="Give a free port of host 0.", min=1, max=65535)
    ] = 29600,
    fabric: Annotated[
        str,
        typer.Option(
            metavar="FABRIC",
            callback=fabric_or(),
            help="Require a fabric that `rdma-transport info` lists: exit with code 3 without it.",
        ),
    ] = "",
    seconds: Annotated[
        float, typer.Option(help="Send traffic for about this many seconds.", min=1, max=86400)
    ] = 240,
    largest: Annotated[
        str, typer.Option(help="Write and read up to this many bytes at a time.")
    ] = "1GiB",
    memory: Annotated[
        str,
        typer.Option(help="Register this many bytes.  [default: the arena's size, if it is free]"),
    ] = "",
    link_down: Annotated[
        str,
        typer.Option(
            metavar="INTERFACE",
            help="Take this interface of this host down for 10 s; needs root.",
        ),
    ] = "",
    training: Annotated[
        bool,
        typer.Option("--training/--no-training", help="Train with TensorFlow, if it is there."),
    ] = True,
    wait: Annotated[
        float, typer.Option(help="Wait this many seconds for the other hosts.", min=1)
    ] = 120,
    as_json: AsJson = False,
) -> None:
    """Examine the transport between hosts, claim by claim.

    Run the same command on each host, with its --node-rank, or once under srun, with one task per
    host. Host 0 prints a verdict for each claim. Nothing else should run on the hosts.
    """
    from rdma_transport.qualify.run import Wishes, examine
    from rdma_transport.settings import silence

    ranks = _ranks(nnodes, node_rank, master_addr, master_port)
    wishes = Wishes(
        seconds=seconds,
        largest=_bytes(largest, "--largest"),
        memory=_bytes(memory, "--memory") if memory else 0,
        link_down=link_down,
        ask=ranks.rank == 0 and not link_down and not as_json and sys.stdin.isatty(),
        training=training,
        wait=wait,
        fabric=fabric,
    )
    silence()
    report = examine(ranks, wishes, quiet=as_json or ranks.rank > 0)
    if as_json:
        print_json(report.as_dict())
    if report.refused:
        fail(report.refused, report.code)
    raise typer.Exit(report.code)


def _bytes(text: str, option: str) -> int:
    from rdma_transport.units import parse_size

    try:
        nbytes = parse_size(text)
    except BadInputError as error:
        raise BadInputError(f"{option} {text}: {error}") from None
    if nbytes < 2**16:
        raise BadInputError(f"{option} {text}: give at least 64KiB")
    return nbytes


def _ranks(nnodes: int, node_rank: int | None, master_addr: str, master_port: int) -> "Ranks":
    from rdma_transport.collectives.ranks import Ranks, find_ranks
    from rdma_transport.fabric import FabricValueError

    try:
        found = find_ranks(os.environ)
    except FabricValueError as error:
        raise BadInputError(str(error)) from None
    if node_rank is None and not master_addr and found.size > 1:
        return found
    if node_rank is None or not master_addr:
        raise BadInputError(
            "give --node-rank, the number of this host from 0, and --master-addr, an address of "
            "host 0; and run this on all hosts, or by srun with one task per host"
        )
    if node_rank >= nnodes:
        raise BadInputError(f"--node-rank {node_rank} of --nnodes {nnodes}: the last one is "
                            f"{nnodes - 1}")  # fmt: skip
    return Ranks(node_rank, nnodes, master_addr, master_port, f"{master_addr}:{master_port}")
