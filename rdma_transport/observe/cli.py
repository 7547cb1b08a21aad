"""The commands ``status``, ``metrics`` and ``timeline``.

Exit codes: 0; 1 nothing runs that could be asked; 2 bad input; 130 after Ctrl-C.
"""

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from graph_analyzer.cli import BAD_INPUT, AsJson, make_console, print_json, reported
from rdma_transport import live

NOTHING_THERE = 1

Which = Annotated[
    list[str] | None, typer.Argument(metavar="PID", help="processes; all if none is named")
]


@reported
def status(
    which: Which = None,
    interval: Annotated[
        float, typer.Option(min=0, max=3600, help="seconds over which rates are measured; 0: none")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="do not refresh; as in a pipe")] = False,
    as_json: AsJson = False,
    picture: Annotated[Path | None, typer.Option(help="draw it into this .svg")] = None,
) -> None:
    """Show what running tasks send, receive, wait for and fail at."""
    from rdma_transport.observe import samples

    servers = _servers(which)
    if picture is not None:
        if picture.suffix != ".svg":
            _fail(f"{picture}: a picture of the status is an .svg", BAD_INPUT)
        _check_writable(picture)
    console = make_console()
    refreshes = sys.stdout.isatty() and not console.is_dumb_terminal
    if refreshes and not (once or as_json or picture):
        _watch(which or [], max(interval, 0.1), console)
        return
    before = samples.take(servers) if interval else None
    time.sleep(interval)
    after = samples.take(servers)
    if not after.answers:
        _fail("; ".join(after.silent.values()), NOTHING_THERE)
    document = samples.describe(after, before)
    if picture is not None:
        from rdma_transport.observe.picture import draw

        draw(document, picture)
    if as_json:
        print_json(document)
    else:
        from rdma_transport.observe.table import render

        console.print(render(document, console.width))


@reported
def metrics(
    listen: Annotated[str, typer.Option(help="address and port to be scraped at")] = (
        "127.0.0.1:9449"
    ),
    textfile: Annotated[
        Path | None,
        typer.Option(help="do not listen; write rdma_transport.prom into this directory"),
    ] = None,
    interval: Annotated[
        float, typer.Option(min=0.1, max=3600, help="seconds between two writes of --textfile")
    ] = 15.0,
    once: Annotated[bool, typer.Option("--once", help="print (or write) them once")] = False,
) -> None:
    """Export what running tasks do to Prometheus."""
    from rdma_transport.observe import exporter

    if textfile is not None:
        while True:
            try:
                exporter.write(textfile)
            except OSError as error:
                _fail(f"cannot write into {textfile}: {error.strerror or error}", BAD_INPUT)
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
        _fail(f"--listen {error}", BAD_INPUT)
    except OSError as error:
        _fail(f"cannot listen on {listen}: {error.strerror or error}", BAD_INPUT)
    if not address.loopback:
        typer.echo(
            f"warning: {address.text} can be reached from other hosts, and asks nobody for a "
            "password; 127.0.0.1 is for this host alone",
            err=True,
        )
    typer.echo(f"metrics at http://{address.text}/metrics; Ctrl-C ends", err=True)
    serving.join()


@reported
def timeline(
    which: Which = None,
    seconds: Annotated[float, typer.Option(min=0.01, max=3600, help="how long to record")] = 5.0,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="file for Perfetto; - is standard output")
    ] = Path("timeline.json"),
    events: Annotated[
        int,
        typer.Option(min=1, max=4 << 20, help="most that a process keeps; two for each tensor"),
    ] = 400_000,
) -> None:
    """Record single transfers of running tasks, for Perfetto."""
    from rdma_transport.observe import recording

    servers = _servers(which)
    to_stdout = str(output) == "-"
    if not to_stdout:  # before the recording, which takes a while
        _check_writable(output)
    recorded, failed = recording.record(servers, seconds, events)
    for why in failed:
        typer.echo(f"warning: not in the timeline: {why}", err=True)
    if not recorded:
        _fail("no process could be recorded", NOTHING_THERE)
    for pid, kept in recorded.items():
        if kept["dropped"]:
            typer.echo(
                f"warning: process {pid} had no room for {kept['dropped']:,} events more; record "
                "for a shorter time, or raise --events",
                err=True,
            )
    made = recording.build(recorded)
    if to_stdout:
        print_json(made)
        return
    recording.write(made, output)
    typer.echo(recording.summary(made, output), err=True)


def _check_writable(path: Path) -> None:
    if path.is_dir():
        _fail(f"{path} is a directory; name a file in it", BAD_INPUT)
    if not path.parent.is_dir():
        _fail(f"cannot write {path}: there is no directory {path.parent}", BAD_INPUT)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        _fail(f"cannot write {path}: permission denied", BAD_INPUT)


def _servers(which: list[str] | None) -> list[live.LiveServer]:
    try:
        return live.find(which or [])
    except LookupError as error:
        _fail(str(error.args[0]), NOTHING_THERE)
    except ValueError as error:
        _fail(str(error), BAD_INPUT)


def _watch(which: list[str], interval: float, console: Any) -> None:
    """Refresh until Ctrl-C, or until nobody is left."""
    from rich.console import Group
    from rich.live import Live

    from rdma_transport.observe import samples
    from rdma_transport.observe.table import render

    before = None
    seen: set[int] = set()
    with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as shown:
        while True:
            try:
                after = samples.take(live.find(which))
            except LookupError:
                break
            alive = after.answers.keys() | after.silent.keys()
            seen |= alive
            ended = [f"process {pid} has ended" for pid in sorted(seen - alive)]
            table = render(samples.describe(after, before), console.width)
            shown.update(Group(table, *ended), refresh=True)
            before = after
            time.sleep(interval)
    typer.echo("all have ended; above is the last that was seen", err=True)


def _fail(why: str, code: int) -> NoReturn:
    typer.echo(f"error: {why}", err=True)
    raise typer.Exit(code)
