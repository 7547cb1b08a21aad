"""The commands ``plan``, ``capacity`` and ``advice``; a first word that is none is a graph to plan.

Exit codes: 0, 2 for bad input (a sentence on stderr), 130 after Ctrl-C.
"""

import errno
import functools
import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from graph_analyzer import streams
from graph_analyzer.errors import AnalysisError
from graph_analyzer.plan import VERSION, Plan

BAD_INPUT = 2
_PIPE_COLUMNS = 180
"""Wide enough for most rows; without a terminal there is no width to fit into."""


class PlanByDefault(TyperGroup):
    """Takes ``FILE ...`` and ``--option ... FILE`` for ``plan FILE ...``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put ``plan`` before arguments that begin with neither a command nor ``--help``."""
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["plan", *args]
        return super().parse_args(ctx, args)


def make_app(help: str, cls: type[TyperGroup] = TyperGroup) -> typer.Typer:
    """Return an empty command line with the manners that all of this project's have."""
    return typer.Typer(
        cls=cls,
        help=help,
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


app = make_app("Which tensors of a graph cross between tasks, and what that costs.", PlanByDefault)

GraphPath = Annotated[
    Path,
    typer.Argument(
        metavar="GRAPH",
        help="SavedModel directory, .pb, .meta or .pbtxt; or the .json of an earlier plan",
    ),
]
Cluster = Annotated[
    str, typer.Option("--cluster", "-c", help="ps=1,worker=2, or JSON, or a whole TF_CONFIG")
]
ArenaLimit = Annotated[str | None, typer.Option(help="most planned memory per task, as 4GiB")]
InlineLimit = Annotated[str | None, typer.Option(help="tensors up to this size ride inline")]
DefaultDevice = Annotated[str, typer.Option(help="where ops without a device run")]
Tags = Annotated[str | None, typer.Option(help="which meta graph of a SavedModel: serve,gpu")]
AsJson = Annotated[bool, typer.Option("--json", help="only JSON on stdout")]
Batch = Annotated[int | None, typer.Option(help="rows per worker and step")]
Colocated = Annotated[bool, typer.Option("--colocated", help="servers on the workers' hosts")]


def reported(command: Callable[..., None]) -> Callable[..., None]:
    """Turn an ``AnalysisError`` into its sentence on stderr and exit code 2."""

    @functools.wraps(command)
    def run(*args: Any, **values: Any) -> None:
        try:
            command(*args, **values)
        except AnalysisError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(BAD_INPUT) from None
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader had enough; typer ends quietly
                raise
            typer.echo(f"error: cannot write the answer: {error.strerror or error}", err=True)
            raise typer.Exit(BAD_INPUT) from None

    return run


@app.command()
@reported
def plan(
    graph: Annotated[
        Path | None,
        typer.Argument(
            metavar="[GRAPH]",
            help="SavedModel directory, .pb, .meta or .pbtxt; or the .json of an earlier plan",
        ),
    ] = None,
    cluster: Cluster = "",
    live: Annotated[
        str | None, typer.Option(help="not a graph: the servers that run here; a pid, or all")
    ] = None,
    as_json: AsJson = False,
    picture: Annotated[Path | None, typer.Option(help="draw into this .png or .svg")] = None,
    arena_limit: ArenaLimit = None,
    inline_limit: InlineLimit = None,
    default_device: DefaultDevice = "",
    tags: Tags = None,
    advice: Annotated[bool, typer.Option("--advice", help="compare schemes too")] = False,
    batch: Batch = None,
    rows: Annotated[int, typer.Option(min=0, help="edges to show, the largest; 0: all")] = 40,
) -> None:
    """Show what crosses between tasks, why, and what it costs.

    Edges with class, bytes, allocation site and slots; memory of each task.
    """
    if (graph is None) == (live is None):
        raise AnalysisError("give either a graph to plan or --live with a pid, or with all")
    if live is not None:
        _show_live(live, as_json)
        return
    if picture is not None:
        from graph_analyzer.picture import check_suffix

        check_suffix(picture)  # before the analysis, which may take a while
    assert graph is not None
    made = _plan(graph, cluster, arena_limit, inline_limit, default_device, tags)
    advised = None
    if advice:
        from graph_analyzer.advice import advise

        advised = advise(made, batch=batch)
    if picture is not None:
        from graph_analyzer.picture import draw

        draw(made, picture)
    if as_json:
        print_json(made.as_dict() | ({"advice": advised.as_dict()} if advised else {}))
        return
    from graph_analyzer import report

    console = make_console()
    report.print_plan(made, console, rows)
    if advised:
        console.print(report.advice_table(advised))


@app.command()
@reported
def capacity(
    graph: Annotated[
        Path | None,
        typer.Argument(metavar="[GRAPH]", help="a graph, or the .json of a plan; or else --mib"),
    ] = None,
    mib: Annotated[float | None, typer.Option(help="parameters in MiB, spread evenly")] = None,
    workers: Annotated[str, typer.Option(help="how many; several as 8,64,512")] = "8",
    servers: Annotated[str, typer.Option(help="how many; several as 1,2,4")] = "1",
    bandwidth: Annotated[
        str, typer.Option(help="of a port in one direction: 100Gbit or 12.5GB/s")
    ] = "100Gbit",
    batch: Batch = None,
    queue_pairs: Annotated[int, typer.Option(help="per pair of connected tasks")] = 1,
    slots: Annotated[int, typer.Option(help="receive buffers per edge")] = 2,
    cluster: Cluster = "",
    default_device: DefaultDevice = "",
    tags: Tags = None,
    as_json: AsJson = False,
) -> None:
    """Reckon what a step needs with N workers and M servers.

    Memory, queue pairs, bytes and time.
    """
    from graph_analyzer import capacity as reckon
    from graph_analyzer.units import parse_bandwidth

    rate = parse_bandwidth(bandwidth)
    counts = itertools.product(_numbers(workers, "--workers"), _numbers(servers, "--servers"))
    model: int | Plan
    if (graph is None) == (mib is None):
        raise AnalysisError("give either a graph or --mib, the size of the parameters in MiB")
    if graph is not None:
        model = _plan(graph, cluster, None, None, default_device, tags)
    else:
        model = _mib(mib)
    found = [
        reckon(
            model, n, m,
            bandwidth=rate, batch=batch, queue_pairs_per_peer=queue_pairs, slots=slots,
        )
        for n, m in counts
    ]  # fmt: skip
    if as_json:
        print_json({"version": VERSION, "capacity": [one.as_dict() for one in found]})
        return
    from graph_analyzer.report import capacity_table

    make_console().print(capacity_table(found))


@app.command()
@reported
def advice(
    graph: GraphPath,
    cluster: Cluster = "",
    batch: Batch = None,
    workers: Annotated[int | None, typer.Option(help="instead of the plan's")] = None,
    servers: Annotated[int | None, typer.Option(help="instead of the plan's")] = None,
    colocated: Colocated = False,
    default_device: DefaultDevice = "",
    tags: Tags = None,
    as_json: AsJson = False,
) -> None:
    """Compare what carries gradients, for each variable.

    A parameter server, a ring all-reduce and sufficient factors.
    """
    from graph_analyzer.advice import advise

    made = _plan(graph, cluster, None, None, default_device, tags)
    advised = advise(made, batch=batch, workers=workers, servers=servers, colocated=colocated)
    if as_json:
        print_json({"version": VERSION, "advice": advised.as_dict()})
        return
    from graph_analyzer.report import advice_table

    make_console().print(advice_table(advised))


def _show_live(which: str, as_json: bool) -> None:
    from rdma_transport import live

    found = [one for one in live.servers() if which in ("all", str(one.pid))]
    if not found:
        raise AnalysisError(
            f"no server to ask: {'none runs' if which == 'all' else f'process {which} is none'} "
            "with protocol='rdma' on this host under this user"
        )
    try:
        plans = {server.pid: server.stats()["plan"] for server in found}
    except ConnectionError as error:
        raise AnalysisError(str(error)) from error
    if as_json:
        print_json({"version": VERSION, "live": {str(pid): one for pid, one in plans.items()}})
        return
    from graph_analyzer.report import live_table

    for pid, one in plans.items():
        table = live_table(one)
        table.title = f"what process {pid} sends"
        make_console().print(table)


def _plan(
    graph: Path,
    cluster: str,
    arena_limit: str | None,
    inline_limit: str | None,
    default_device: str,
    tags: str | None,
) -> Plan:
    if graph.suffix == ".json":
        from graph_analyzer.sources import read_text

        return Plan.from_json(read_text(graph))
    if not cluster:
        raise AnalysisError("which cluster? Give it as --cluster ps=1,worker=2")
    from graph_analyzer import analyze

    return analyze(
        graph,
        cluster,
        arena_limit=arena_limit,
        inline_limit=inline_limit,
        default_device=default_device,
        tags=None if tags is None else [tag.strip() for tag in tags.split(",") if tag.strip()],
    )


def _numbers(text: str, option: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= 9 for part in parts):
        raise AnalysisError(f"{option} {text!r}: give a number, or several as 8,64,512")
    return [int(part) for part in parts]


def _mib(mib: float | None) -> int:
    if mib is None or not 0 < mib <= 2**40:
        raise AnalysisError(f"--mib {mib}: the size of the parameters must be above 0")
    return round(mib * 2**20)


def print_json(value: dict[str, Any]) -> None:
    """Write JSON, and nothing else, to stdout."""
    sys.stdout.write(json_text(value) + "\n")
    sys.stdout.flush()


def json_text(value: dict[str, Any]) -> str:
    """Return JSON in letters that stdout has."""
    utf = sys.stdout.encoding.lower().startswith("utf")
    return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=not utf)


def make_console() -> Any:
    """Return a console for stdout, wide enough for tables in a pipe."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_COLUMNS)


def run(application: typer.Typer, name: str) -> None:
    """Run a command line under its name; ends the process with the exit codes above."""
    # its lines about this machine's processor are no answer to what was asked
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    streams.repair()
    try:
        application(prog_name=name)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:  # of --help and of usage; commands report theirs
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # what is left in it goes nowhere
        typer.echo(f"error: cannot write the answer: {error.strerror or error}", err=True)
        sys.exit(BAD_INPUT)


def main() -> None:
    """Run ``python -m graph_analyzer``."""
    run(app, "graph_analyzer")
