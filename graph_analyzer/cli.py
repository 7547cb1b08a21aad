"""The commands ``plan``, ``capacity`` and ``advice``. ``plan`` is the default command."""

import itertools
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from graph_analyzer.capacity import QUEUE_PAIRS_PER_PEER, SLOTS_PER_EDGE
from graph_analyzer.errors import AnalysisError
from graph_analyzer.plan import Plan
from graph_analyzer.records import VERSION
from rdma_transport.command_line import (
    FAILED,
    AsJson,
    fail,
    make_app,
    make_console,
    print_json,
    run,
)


class PlanByDefault(TyperGroup):
    """Parses ``FILE ...`` and ``--option ... FILE`` as ``plan FILE ...``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert ``plan`` unless the arguments start with a command or ``--help``."""
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["plan", *args]
        return super().parse_args(ctx, args)


app = make_app("Plan the tensors of a graph that cross between tasks.", PlanByDefault)

_GRAPH_HELP = (
    "Read a SavedModel directory, a .pb, .meta or .pbtxt file, the .json of a plan, or a function "
    "or model of a script, as train.py:step. The script is run."
)
GraphPath = Annotated[Path, typer.Argument(metavar="GRAPH", help=_GRAPH_HELP)]
Cluster = Annotated[
    str,
    typer.Option(
        "--cluster", "-c", help="Set the cluster: ps=1,worker=2, JSON or a complete TF_CONFIG."
    ),
]
ArenaLimit = Annotated[
    str | None,
    typer.Option(
        help="Limit the planned memory per task, as 4GiB.  [default: RDMA_TRANSPORT_ARENA_SIZE]"
    ),
]
InlineLimit = Annotated[
    str | None,
    typer.Option(help="Send tensors up to this size inline.  [default: RDMA_TRANSPORT_INLINE_MAX]"),
]
DefaultDevice = Annotated[
    str,
    typer.Option(help="Place operations without a device here, as /job:worker/task:0."),
]
Tags = Annotated[
    str | None, typer.Option(help="Choose the meta graph of a SavedModel by its tags: serve,gpu.")
]
Batch = Annotated[int | None, typer.Option(help="Set the rows per worker and step.")]
Colocated = Annotated[
    bool, typer.Option("--colocated", help="Assume that servers run on the workers' hosts.")
]


@app.command()
def plan(
    graph: Annotated[Path | None, typer.Argument(metavar="[GRAPH]", help=_GRAPH_HELP)] = None,
    cluster: Cluster = "",
    live: Annotated[
        str | None,
        typer.Option(help="Show the plan of a running server instead: a process id, or all."),
    ] = None,
    as_json: AsJson = False,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the plan to this .png or .svg file.")
    ] = None,
    arena_limit: ArenaLimit = None,
    inline_limit: InlineLimit = None,
    default_device: DefaultDevice = "",
    tags: Tags = None,
    advice: Annotated[
        bool, typer.Option("--advice", help="Add the comparison of the command advice.")
    ] = False,
    batch: Batch = None,
    rows: Annotated[
        int, typer.Option(min=0, help="Show this many of the largest edges; 0 shows all.")
    ] = 40,
) -> None:
    """Show the tensors that cross between tasks, and their cost.

    Prints each edge with its mode, bytes, allocation site and slots, and the memory of each task.
    """
    if (graph is None) == (live is None):
        raise AnalysisError("give either a graph, or --live with a process id or all")
    if live is not None:
        _show_live(live, as_json)
        return
    if picture is not None:
        from graph_analyzer.picture import check_suffix

        check_suffix(picture)  # before the analysis, which may take a while
    assert graph is not None
    made = _plan(graph, cluster, arena_limit, inline_limit, default_device, tags)
    if made.why_empty:
        typer.echo(f"warning: {made.why_empty}", err=True)
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
def capacity(
    graph: Annotated[
        Path | None,
        typer.Argument(
            metavar="[GRAPH]", help="Read a graph or the .json of a plan, or use --mib."
        ),
    ] = None,
    mib: Annotated[
        float | None, typer.Option(help="Set the size of the parameters in MiB, spread evenly.")
    ] = None,
    workers: Annotated[
        str, typer.Option(help="Set the number of workers, or several numbers: 8,64,512.")
    ] = "8",
    servers: Annotated[
        str, typer.Option(help="Set the number of servers, or several numbers: 1,2,4.")
    ] = "1",
    bandwidth: Annotated[
        str, typer.Option(help="Set the bandwidth of a port per direction: 100Gbit or 12.5GB/s.")
    ] = "100Gbit",
    batch: Batch = None,
    queue_pairs: Annotated[
        int,
        typer.Option(
            help="Set the queue pairs that a task has per peer: two channels, one opened by each "
            "side, times RDMA_TRANSPORT_QUEUE_PAIRS. libfabric has none: 0."
        ),
    ] = QUEUE_PAIRS_PER_PEER,
    slots: Annotated[int, typer.Option(help="Set the receive buffers per edge.")] = SLOTS_PER_EDGE,
    cluster: Cluster = "",
    default_device: DefaultDevice = "",
    tags: Tags = None,
    as_json: AsJson = False,
) -> None:
    """Estimate the needs of N workers and M servers.

    Prints memory, queue pairs, bytes and time per step.
    """
    from graph_analyzer import capacity as estimate
    from graph_analyzer.units import parse_bandwidth

    rate = parse_bandwidth(bandwidth)
    counts = itertools.product(_numbers(workers, "--workers"), _numbers(servers, "--servers"))
    model: int | Plan
    if (graph is None) == (mib is None):
        raise AnalysisError("give either a graph, or the size of the parameters with --mib")
    if graph is not None:
        model = _plan(graph, cluster, None, None, default_device, tags)
    else:
        model = _mib(mib)
    found = [
        estimate(
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
def advice(
    graph: GraphPath,
    cluster: Cluster = "",
    batch: Batch = None,
    workers: Annotated[
        int | None, typer.Option(help="Set the number of workers.  [default: the plan's]")
    ] = None,
    servers: Annotated[
        int | None, typer.Option(help="Set the number of servers.  [default: the plan's]")
    ] = None,
    colocated: Colocated = False,
    default_device: DefaultDevice = "",
    tags: Tags = None,
    as_json: AsJson = False,
) -> None:
    """Compare schemes to exchange gradients, for each variable.

    The schemes are a parameter server, a ring all-reduce and sufficient factors.
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

    try:
        plans = {server.pid: server.stats()["plan"] for server in live.find([which])}
    except ValueError as error:
        raise AnalysisError(f"--live: {error}") from error
    except (LookupError, ConnectionError) as error:
        fail(str(error.args[0]), FAILED)
    if as_json:
        print_json({"version": VERSION, "live": {str(pid): one for pid, one in plans.items()}})
        return
    from graph_analyzer.report import live_table

    for pid, one in plans.items():
        table = live_table(one)
        table.title = f"edges that process {pid} sends"
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
        raise AnalysisError("a graph needs a cluster: add --cluster ps=1,worker=2")
    from graph_analyzer import analyze

    return analyze(
        _in_script(graph) if ".py:" in graph.name else graph,
        cluster,
        arena_limit=arena_limit,
        inline_limit=inline_limit,
        default_device=default_device,
        tags=None if tags is None else [tag.strip() for tag in tags.split(",") if tag.strip()],
    )


def _in_script(place: Path) -> Any:
    """Run the script ``FILE.py`` of ``FILE.py:NAME`` and return what it calls ``NAME``."""
    import runpy

    script, _, name = str(place).rpartition(":")
    try:
        found = runpy.run_path(script)
    except Exception as error:
        raise AnalysisError(f"{script} failed: {type(error).__name__}: {error}") from error
    if name not in found:
        raise AnalysisError(f"{script} has nothing with the name {name!r}")
    return found[name]


def _numbers(text: str, option: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= 9 for part in parts):
        raise AnalysisError(f"{option} {text!r}: give a number, or several numbers: 8,64,512")
    return [int(part) for part in parts]


def _mib(mib: float | None) -> int:
    if mib is None or not 0 < mib <= 2**40:
        raise AnalysisError(f"--mib {mib}: give a size greater than 0 and at most 2**40 MiB")
    return round(mib * 2**20)


def main() -> None:
    """Run ``python -m graph_analyzer``."""
    run(app, "graph_analyzer")
