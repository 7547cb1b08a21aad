"""The command ``rdma-transport doctor``."""

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rdma_transport.command_line import (
    NO_PEER,
    AsJson,
    fabric_or,
    fail,
    print_json,
    split_place,
)
from rdma_transport.errors import BadInputError

if TYPE_CHECKING:
    from rdma_transport.doctor.context import Context

_LONGEST_WAIT = 3600.0
_FOR_PEER, _FOR_CLIENT = 10.0, 300.0


def doctor(
    plan: Annotated[
        Path | None,
        typer.Option(
            help="Compare this host with a plan that `rdma-transport plan ... --json` wrote."
        ),
    ] = None,
    task: Annotated[
        str,
        typer.Option(
            help="Choose a task of the plan, as /job:ps/task:0.  "
            "[default: the task that needs the most memory]"
        ),
    ] = "",
    peer: Annotated[
        str, typer.Option(help="Test the connection to HOST:PORT, a running task or a --listen.")
    ] = "",
    listen: Annotated[
        str, typer.Option(help="Listen on [HOST:]PORT for the --peer of one other doctor.")
    ] = "",
    tf_config: Annotated[
        str,
        typer.Option(
            help="Check all tasks of this TF_CONFIG, a JSON text or a file.  [default: that of the "
            "environment]"
        ),
    ] = "",
    fabric: Annotated[
        str,
        typer.Option(
            metavar="FABRIC",
            callback=fabric_or(),
            help="Require a fabric that `rdma-transport info` lists: exit with code 3 if it is "
            "not available.",
        ),
    ] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="Skip the check that starts TensorFlow.")
    ] = False,
    wait: Annotated[
        float | None,
        typer.Option(
            max=_LONGEST_WAIT,
            help="Wait this many seconds.  [default: 10 with --peer, 300 with --listen]",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check this host for problems, and print a fix for each."""
    from rdma_transport.doctor import cluster
    from rdma_transport.doctor import peer as peers
    from rdma_transport.doctor.context import Context, need_of, require, set_aside
    from rdma_transport.settings import read, silence

    if task and plan is None:
        raise BadInputError("--task needs a plan: add --plan plan.json")
    if listen and (peer or plan or tf_config):
        raise BadInputError("--listen is not for use with --peer, --plan, --task or --tf-config")
    if peer:
        peers.place(peer)
    if wait is not None and wait <= 0:
        raise BadInputError(f"--wait {wait:g}: give a number of seconds greater than 0")
    if fabric:
        require(fabric)
    if listen:
        silence()
        raise typer.Exit(_listen(listen, _FOR_CLIENT if wait is None else wait, as_json))
    given = read()
    context = Context(
        given=given,
        environment=set_aside(given),
        required=fabric,
        need=need_of(plan, task) if plan else None,
        peer=peer,
        tf_config=cluster.text_of(tf_config) if tf_config else os.environ.get("TF_CONFIG", ""),
        quick=quick,
        wait=_FOR_PEER if wait is None else wait,
    )
    silence()
    raise typer.Exit(_examine(context, as_json))


def _examine(context: "Context", as_json: bool) -> int:
    from rdma_transport.doctor.run import as_dict, examine, exit_code

    if as_json:
        results = [result for _, result in examine(context)]
        code = exit_code(results, context.required)
        print_json(as_dict(results, code))
        return code
    from rich.console import Console

    from rdma_transport.doctor.report import show

    return exit_code(
        show(examine(context), Console(), context.system.container()), context.required
    )


def _listen(place: str, wait: float, as_json: bool) -> int:
    from rdma_transport.doctor import run
    from rdma_transport.doctor.meeting import opened, receive

    parsed = split_place(place)
    if parsed is None:
        raise BadInputError(f"--listen {place}: give PORT or HOST:PORT, such as 2222")
    host, port = parsed
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        server = socket.create_server((host, port), family=family)
    except OSError as error:
        raise BadInputError(f"--listen {place}: {error.strerror or error}") from None
    device = opened()  # a client that connects waits only briefly for an answer
    with server:
        there = server.getsockname()[1]
        print(
            f"listening; run on the other host: rdma-transport doctor --peer "
            f"{host or socket.gethostname()}:{there}",
            file=sys.stderr,
            flush=True,
        )
        server.settimeout(wait)
        try:
            connection, _ = server.accept()
        except TimeoutError:
            fail(f"no client connected within {wait:g} s (--wait)", NO_PEER)
    with connection:
        result = receive(connection, device)
    code = run.exit_code([result], "")
    if as_json:
        print_json(run.as_dict([result], code))
        return code
    from rich.console import Console

    from rdma_transport.doctor.report import show

    show([("client", result)], Console(), "")
    return code
