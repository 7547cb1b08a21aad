"""The commands ``status``, ``metrics`` and ``timeline``."""

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from rdma_transport import live
from rdma_transport.command_line import (
    FAILED,
    AsJson,
    check_output,
    check_writable,
    fail,
    output,
    print_json,
)
from rdma_transport.errors import BadInputError

Which = Annotated[
    list[str] | None,
    typer.Argument(metavar="PID", help="Select processes by id.  [default: all]"),
]


def status(
    which: Which = None,
    interval: Annotated[
        float,
        typer.Option(min=0, max=3600, help="Measure rates over this many seconds; 0 omits them."),
    ] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print once and exit, as in a pipe.")
    ] = False,
    edges: Annotated[
        bool,
        typer.Option("--edges", help="Show what each edge of the plan carried, not the peers."),
    ] = False,
    as_json: AsJson = False,
    picture: Annotated[Path | None, output("Draw the status to this .svg file.")] = None,
) -> None:
    """Show traffic, memory, peers, edges and errors of running tasks.

    In a terminal, the view is interactive: arrows scroll, < and > sort, / filters, q quits.
    """
    from rdma_transport.observe import samples

    servers = _servers(which)
    if picture is not None:
        check_output(picture, ".svg")
    from rdma_transport.tables import make_console

    console = make_console()
    refreshes = sys.stdout.isatty() and not console.is_dumb_terminal
    watches = refreshes and not (once or as_json or picture)
    if watches and _watch(which or [], edges, max(interval, 0.1), console):
        return
    before = samples.take(servers) if interval else None
    time.sleep(interval)
    after = samples.take(servers)
    if not after.answers:
        fail("; ".join(after.silent.values()), FAILED)
    document = samples.describe(after, before, edges)
    if picture is not None:
        from rdma_transport.observe.picture import draw

        draw(document, picture)
    if as_json:
        print_json(document)
    else:
        from rdma_transport.observe.table import render

        console.print(render(document))


def metrics(
    listen: Annotated[
        str, typer.Option(help="Serve scrapes on [HOST:]PORT; without HOST on all interfaces.")
    ] = "127.0.0.1:9449",
    file: Annotated[
        Path | None, output("Write this .prom file again and again instead of listening.")
    ] = None,
    interval: Annotated[
        float,
        typer.Option(min=0.1, max=3600, help="Set the seconds between two writes of --output."),
    ] = 15.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print or write the metrics once and exit.")
    ] = False,
) -> None:
    """Export metrics of running tasks to Prometheus."""
    from rdma_transport.observe import exporter

    if file is not None:
        check_output(file, ".prom")
        while True:
            try:
                exporter.write(file)
            except OSError as error:
                raise BadInputError(f"cannot write to {file}: {error.strerror or error}") from None
            if once:
                return
            time.sleep(interval)
    if once:
        sys.stdout.write(exporter.text())
        sys.stdout.flush()
        return
    try:
        address, serving = exporter.serve(exporter.parse_address(listen))
    except ValueError as error:
        raise BadInputError(f"--listen {error}") from None
    except OSError as error:
        raise BadInputError(f"cannot listen on {listen}: {error.strerror or error}") from None
    if not address.loopback:
        typer.echo(
            f"warning: {address.text} can be reached from other hosts and has no authentication. "
            "To accept only this host, listen on 127.0.0.1",
            err=True,
        )
    typer.echo(f"metrics at http://{address.text}/metrics; press Ctrl-C to stop", err=True)
    serving.join()


def timeline(
    which: Which = None,
    seconds: Annotated[
        float, typer.Option(min=0.01, max=3600, help="Record for this many seconds.")
    ] = 5.0,
    file: Annotated[Path, output("Write the trace to this file; - is standard output.")] = Path(
        "timeline.json"
    ),
    events: Annotated[
        int,
        typer.Option(
            min=1, max=4 << 20, help="Keep at most this many events per process, two per tensor."
        ),
    ] = 400_000,
    merge: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Record nothing, and merge this timeline of a host with those of others; "
            "repeatable.",
        ),
    ] = None,
) -> None:
    """Record the transfers of running tasks as a trace for Perfetto.

    Ctrl-C ends the recording early and writes it.
    """
    from rdma_transport.observe import recording

    servers = [] if merge else _servers(which)
    to_stdout = str(file) == "-"
    if not to_stdout:  # check before the recording, which takes a while
        check_writable(file)
    if merge:
        from rdma_transport.observe.merging import merge as merged

        made = merged(merge)
    else:
        made = _recorded(servers, seconds, events)
    if to_stdout:
        print_json(made)
        return
    recording.write(made, file)
    typer.echo(recording.summary(made, file), err=True)


def _recorded(servers: list[live.LiveServer], seconds: float, events: int) -> dict[str, Any]:
    from rdma_transport.observe import recording

    recorded, failed = recording.record(servers, seconds, events)
    for why in failed:
        typer.echo(f"warning: not in the timeline: {why}", err=True)
    if not recorded:
        fail("no process could be recorded", FAILED)
    for pid, kept in recorded.items():
        if kept["dropped"]:
            typer.echo(
                f"warning: process {pid} dropped {kept['dropped']:,} events. Record for a shorter "
                "time, or raise --events",
                err=True,
            )
    return recording.build(recorded)


def _servers(which: list[str] | None) -> list[live.LiveServer]:
    try:
        return live.find(which or [])
    except LookupError as error:
        fail(str(error.args[0]), FAILED)
    except ValueError as error:
        raise BadInputError(str(error)) from None


def _watch(which: list[str], edges: bool, interval: float, console: Any) -> bool:
    """Show the status until the user quits or all processes have ended; False if it cannot."""
    try:
        from rdma_transport.observe import viewer
    except ModuleNotFoundError as error:
        if error.name != "textual":
            raise
        typer.echo("note: the interactive view requires: pip install textual", err=True)
        return False
    from rdma_transport.observe import samples
    from rdma_transport.observe.table import render

    def take() -> samples.Sample | None:
        try:
            return samples.take(live.find(which))
        except LookupError:
            return None

    shown = viewer.Viewer(take, interval, edges)
    why = shown.run()
    if why is None:
        sys.exit(FAILED)
    if why == viewer.INTERRUPTED:
        raise KeyboardInterrupt
    if why == viewer.ENDED and shown.document is not None:
        console.print(render(shown.document))
        typer.echo("all processes have ended; above is their last status", err=True)
    return True
