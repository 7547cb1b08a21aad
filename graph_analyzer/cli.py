"""The commands ``plan`` and ``capacity``. ``plan`` is the default command."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from graph_analyzer.capacity_cli import capacity
from graph_analyzer.clusters import MAX_TASKS
from graph_analyzer.options import (
    ArenaLimit,
    Cluster,
    DefaultDevice,
    GraphPath,
    InlineLimit,
    Tags,
    load,
    read_plan,
    refuse,
    tags_of,
)
from graph_analyzer.plan import Plan
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


app = make_app(
    "Plan the tensors of a graph that cross between tasks, or that ranks reduce.", PlanByDefault
)


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
    rows: Annotated[
        int,
        typer.Option(min=0, help="Show this many of the largest edges or reductions; 0 shows all."),
    ] = 40,
    ranks: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_TASKS,
            help="Without a cluster, compute what each of this many ranks sends.  [default: those "
            "of this job]",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Without a cluster, also take this many steps, and measure how much of the "
            "exchange they hide. Variables get their values back.",
        ),
    ] = None,
) -> None:
    """Show which tensors cross between tasks, or what ranks reduce.

    With a cluster, prints each edge with its mode, bytes, allocation site and slots, and the memory
    of each task. Without one, prints what the ranks of a data-parallel step exchange, in the order
    in which the backward pass makes it. For that, ranks must run the command, and rank 0 prints:
    rdma-transport run -n 2 -- rdma-transport plan train.py:step. With MultiWorkerMirroredStrategy,
    each worker runs it with its TF_CONFIG, and prints.
    """
    if not cluster and graph.suffix != ".json":
        refuse(
            "is for edges between tasks: add --cluster ps=1,worker=2, or omit the option",
            output=picture,
            arena_limit=arena_limit,
            inline_limit=inline_limit,
            default_device=default_device,
        )
        _show_step(graph, tags, ranks, steps, as_json, rows)
        return
    refuse(
        "is for what ranks reduce, and this plan is of edges between tasks: omit it, or the "
        "cluster",
        ranks=ranks,
        steps=steps,
    )
    if picture is not None:
        check_output(picture, ".png", ".svg")  # before the analysis, which may take a while
    limits = arena_limit, inline_limit
    _show_edges(read_plan(graph, cluster, *limits, default_device, tags), as_json, picture, rows)


def _show_step(
    graph: Path, tags: str | None, ranks: int | None, steps: int | None, as_json: bool, rows: int
) -> None:
    from graph_analyzer.reductions import operations_in, reductions_of
    from rdma_transport.collectives.ranks import find_ranks

    loaded = load(graph)
    operations = operations_in(loaded, tags_of(tags))
    found = reductions_of(operations, ranks)
    overlap = None
    if steps is not None:
        from graph_analyzer.overlap import measure

        overlap = measure(loaded, operations, steps)
    if find_ranks().rank > 0:
        return
    if as_json:
        document = found.as_dict()
        if overlap is not None:
            document["reductions"]["measured"] = overlap.as_dict()
        print_json(document)
        return
    from graph_analyzer import report
    from rdma_transport.tables import make_console

    console = make_console()
    report.print_reductions(found, console, rows)
    if overlap is not None:
        console.print(report.overlap_text(overlap), highlight=False)


def _show_edges(made: Plan, as_json: bool, picture: Path | None, rows: int) -> None:
    if made.why_empty:
        typer.echo(f"warning: {made.why_empty}", err=True)
    if picture is not None:
        from graph_analyzer.picture import draw

        draw(made, picture)
    if as_json:
        print_json(made.as_dict())
        return
    from graph_analyzer import report
    from rdma_transport.tables import make_console

    report.print_plan(made, make_console(), rows)


app.command()(capacity)


def main() -> None:
    """Run ``python -m graph_analyzer``."""
    run(app, "graph_analyzer")
