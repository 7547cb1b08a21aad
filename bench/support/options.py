"""The options that several commands and programs have, with the same names and meanings."""

from collections.abc import Collection
from typing import Annotated

import typer

from rdma_transport.command_line import fabric_or, parse_place

from ..report import MIN_SAMPLES

SHARED_MEMORY = "shm"  # that fabric's name in the registry
FABRIC_SIZES, MOST = "1…4MiB*2", "256MiB"
Sizes = Annotated[
    str,
    typer.Option(
        help="Measure these sizes, separated by commas; A…B or A..B: by factors of four, A…B*2: of "
        "two."
    ),
]
Repeat = Annotated[
    int,
    typer.Option(
        "--repeat", "--iterations", min=MIN_SAMPLES, help="Measure each row this many times."
    ),
]
Iterations = Annotated[int, typer.Option(help="Set the iterations per latency test.", min=10)]
Rounds = Annotated[int, typer.Option(help="Set the rounds per bandwidth test.", min=1)]
Most = Annotated[str, typer.Option(help="Limit the bytes that one bandwidth test moves.")]
Hosts = Annotated[
    str,
    typer.Option(
        help="Run on these hosts, in the order of roles: HOST:PORT,HOST:PORT. "
        "Servers use the ports after PORT."
    ),
]
Veth = Annotated[
    str,
    typer.Option(
        metavar="CONTROL",
        help="Run between two network namespaces of this host, which a veth pair joins, with this "
        "congestion control of TCP, such as cubic. Needs root.",
    ),
]
Fabric = Annotated[
    str,
    typer.Option(
        metavar="FABRIC",
        callback=fabric_or("auto"),
        help="Require auto, or a fabric that `rdma-transport info` lists: exit with code 3 if it "
        "is not available.  [default: RDMA_TRANSPORT_FABRIC]",
    ),
]


def choose(text: str, known: Collection[str], what: str, option: str) -> list[str]:
    """Return the names in `text`, which commas separate; raise typer.BadParameter."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    if unknown := [name for name in names if name not in known]:
        raise typer.BadParameter(
            f"unknown {what} {', '.join(unknown)}; use {', '.join(known)}", param_hint=option
        )
    return names


def parse_hosts(text: str, role: int = 0) -> tuple[tuple[str, int], ...]:
    """Return the hosts and ports of `--hosts`; raise typer.BadParameter for an invalid value."""
    if not text:
        if role:
            raise typer.BadParameter("needs --hosts", param_hint="--role")
        return ()
    places = tuple(parse_place(each.strip(), "--hosts") for each in text.split(","))
    if len(places) < 2:
        raise typer.BadParameter(f"'{text}' is not HOST:PORT,HOST:PORT", param_hint="--hosts")
    if role >= len(places):
        raise typer.BadParameter(
            f"{role} is too large for {len(places)} hosts; give 0 to {len(places) - 1}",
            param_hint="--role",
        )
    return places
