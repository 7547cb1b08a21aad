"""The commands ``plan``, ``capacity`` and ``advice``. ``plan`` is the default command."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from graph_analyzer.capacity_cli import capacity
from graph_analyzer.options import (
    ArenaLimit,
    Batch,
    Cluster,
    Colocated,
    DefaultDevice,
    GraphPath,
    InlineLimit,
    Tags,
    read_plan,
)
from graph_analyzer.records import VERSION
from rdma_transport.command_line import (
    AsJson,
    check_output,
    make_app,
    output,
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


@app.command()
def plan(
    graph: GraphPath,
    cluster: Cluster = "",
    as_json: AsJson = False,
    picture: Annotated[Path | None, output("Draw the plan to this .png or .svg file.")] = None,
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
    if picture is not None:
        check_output(picture, ".png", ".svg")  # before the analysis, which may take a while
    made = read_plan(graph, cluster, arena_limit, inline_limit, default_device, tags)
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
    from rdma_transport.tables import Fitted, make_console

    console = make_console()
    report.print_plan(made, console, rows)
    if advised:
        console.print(Fitted(report.advice_table(advised)))


app.command()(capacity)


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

    made = read_plan(graph, cluster, None, None, default_device, tags)
    advised = advise(made, batch=batch, workers=workers, servers=servers, colocated=colocated)
    if as_json:
        print_json({"version": VERSION, "advice": advised.as_dict()})
        return
    from graph_analyzer.report import advice_table
    from rdma_transport.tables import Fitted, make_console

    make_console().print(Fitted(advice_table(advised)))


def main() -> None:
    """Run ``python -m graph_analyzer``."""
    run(app, "graph_analyzer")
