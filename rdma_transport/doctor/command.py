"""The command ``rdma-transport doctor``."""

import socket
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graph_analyzer.cli import AsJson, print_json, reported
from graph_analyzer.errors import AnalysisError

if TYPE_CHECKING:
    from rdma_transport.doctor.case import Case

_LONGEST_WAIT = 3600.0
_FOR_PEER, _FOR_VISITOR = 10.0, 300.0


class Fabric(StrEnum):
    """What can be required."""

    SHM = "shm"
    VERBS = "verbs"


@reported
def doctor(
    plan: Annotated[
        Path | None, typer.Option(help="what `rdma-transport plan ... --json` wrote: its need")
    ] = None,
    task: Annotated[
        str, typer.Option(help="of the plan, as /job:ps/task:0; by default the neediest")
    ] = "",
    peer: Annotated[
        str, typer.Option(help="HOST:PORT of a task that runs, or of another doctor")
    ] = "",
    listen: Annotated[
        str, typer.Option(help="[HOST:]PORT; be the other doctor, for one visitor")
    ] = "",
    fabric: Annotated[
        Fabric | None, typer.Option(help="it must be there: exit code 3 if it is not")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="do not start TensorFlow")] = False,
    wait: Annotated[
        float | None,
        typer.Option(max=_LONGEST_WAIT, help="seconds: for a peer 10, for a visitor 300"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check what a job needs of this host; say what mends it.

    Exit codes: 0 nothing failed, 1 a check failed, 2 wrong usage, 3 the fabric that --fabric
    names is not available, 4 the peer or the visitor did not come, 130 Ctrl-C.
    """
    from rdma_transport.doctor import peer as peers
    from rdma_transport.doctor.case import Case, need_of, require, set_aside
    from rdma_transport.settings import read, silence

    if task and plan is None:
        raise AnalysisError("--task names a task of a plan: give that as --plan plan.json")
    if listen and (peer or plan):
        raise AnalysisError(
            "--listen serves a visitor and checks nothing else: leave the others out"
        )
    if peer:
        try:
            peers.place(peer)
        except ValueError as error:
            raise AnalysisError(str(error)) from None
    if wait is not None and wait <= 0:
        raise AnalysisError(f"--wait {wait:g}: give a number of seconds above 0")
    if fabric:
        require(fabric.value)
    if listen:
        silence()
        raise typer.Exit(_listen(listen, _FOR_VISITOR if wait is None else wait, as_json))
    given = read()
    case = Case(
        given=given,
        environment=set_aside(given),
        required=fabric.value if fabric else "",
        need=need_of(plan, task) if plan else None,
        peer=peer,
        quick=quick,
        wait=_FOR_PEER if wait is None else wait,
    )
    silence()
    raise typer.Exit(_examine(case, as_json))


def _examine(case: "Case", as_json: bool) -> int:
    from rdma_transport.doctor.examination import as_dict, examine, exit_code

    if as_json:
        results = [result for _, result in examine(case)]
        code = exit_code(results, case.required)
        print_json(as_dict(results, code))
        return code
    from rich.console import Console

    from rdma_transport.doctor.report import show

    return exit_code(show(examine(case), Console(), case.surroundings.container()), case.required)


def _listen(place: str, wait: float, as_json: bool) -> int:
    from rdma_transport.doctor import examination
    from rdma_transport.doctor.meeting import receive

    host, _, port = place.rpartition(":")
    host = host.strip("[]")
    if not port.isdigit() or int(port) > 65535:
        raise AnalysisError(f"--listen {place}: this is not PORT or HOST:PORT")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        server = socket.create_server((host, int(port)), family=family)
    except OSError as error:
        raise AnalysisError(f"--listen {place}: {error.strerror or error}") from None
    with server:
        there = server.getsockname()[1]
        print(
            f"listening; on the other host: rdma-transport doctor --peer "
            f"{host or socket.gethostname()}:{there}",
            file=sys.stderr,
            flush=True,
        )
        server.settimeout(wait)
        try:
            connection, _ = server.accept()
        except TimeoutError:
            print(f"error: no visitor came within {wait:g} s (--wait)", file=sys.stderr)
            return examination.NO_PEER
    with connection:
        result = receive(connection)
    code = examination.exit_code([result], "")
    if as_json:
        print_json(examination.as_dict([result], code))
        return code
    from rich.console import Console

    from rdma_transport.doctor.report import show

    show([("the visitor", result)], Console(), "")
    return code
