"""Measures the time to analyze each model's training graph, and whether it is linear in its size.

There are one parameter server and two workers. To test linearity, one graph contains one, two or
four copies of inception_v3, each in its own name scope. "analysis" is the time that the analyzer
reports; "in all" is `graph_analyzer.analyze()`, which also serializes the graph and reads the plan.

usage: python -m bench.analysis [--repeat 7] [--json FILE]
"""

import time
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from .models import MODELS
from .support.exit import run_command
from .support.machine import describe
from .support.options import JsonFile, save
from .support.timing import Summary, summarize

PS = "/job:ps/task:0"
WORKERS = ["/job:worker/task:0", "/job:worker/task:1"]
CLUSTER = {"ps": 1, "worker": len(WORKERS)}
BATCH = 2
LARGEST = "inception_v3"
TIMES = (1, 2, 4)


@dataclass(frozen=True)
class Row:
    """One graph; times are in milliseconds."""

    name: str
    nodes: int
    edges: int
    analysis: Summary
    in_all: Summary

    def as_dict(self) -> dict[str, Any]:
        """Return the row for JSON; times are in ms."""
        return {
            "name": self.name,
            "nodes": self.nodes,
            "edges": self.edges,
            "analysis": self.analysis.as_dict(),
            "in_all": self.in_all.as_dict(),
        }


def definition(name: str) -> Any:
    """Return the GraphDef of a model's training graph."""
    from .models.training import training_graph

    made = training_graph(MODELS[name], batch=BATCH, workers=WORKERS, servers=[PS])
    return made.graph.as_graph_def()


def replicated(graph_def: Any, times: int) -> Any:
    """Return a graph with several unconnected copies of a graph."""
    if times == 1:
        return graph_def
    together = type(graph_def)()
    together.versions.CopyFrom(graph_def.versions)
    together.library.CopyFrom(graph_def.library)
    for copy in range(times):
        scope = f"copy{copy}/"
        for original in graph_def.node:
            node = together.node.add()
            node.CopyFrom(original)
            node.name = scope + original.name
            node.input[:] = [_scoped(scope, one) for one in original.input]
            if "_class" in original.attr:
                groups = node.attr["_class"].list.s
                groups[:] = [one.replace(b"loc:@", b"loc:@" + scope.encode()) for one in groups]
            if "shared_name" in original.attr and original.attr["shared_name"].s:
                node.attr["shared_name"].s = scope.encode() + original.attr["shared_name"].s
    return together


def _scoped(scope: str, name: str) -> str:
    return f"^{scope}{name[1:]}" if name.startswith("^") else scope + name


def measure(graphs: dict[str, Any], repeat: int) -> list[Row]:
    """Analyze each graph several times, in turns, so that noise affects all graphs alike."""
    from graph_analyzer import analyze

    analysis: dict[str, list[float]] = {name: [] for name in graphs}
    in_all: dict[str, list[float]] = {name: [] for name in graphs}
    plans = {name: analyze(graph, CLUSTER) for name, graph in graphs.items()}
    for _ in track(range(repeat), "measuring"):
        for name, graph in graphs.items():
            start = time.perf_counter()
            plan = analyze(graph, CLUSTER)
            in_all[name].append(1e3 * (time.perf_counter() - start))
            analysis[name].append(1e3 * plan.analysis_seconds)
    return [
        Row(name, plan.nodes, len(plan.edges), summarize(analysis[name]), summarize(in_all[name]))
        for name, plan in plans.items()
    ]


def table_of(title: str, rows: list[Row]) -> Table:
    """Return a table of the rows; times are in ms."""
    table = Table(title=title)
    headings = ("", "nodes", "edges", "analysis", "min", "µs per node", "in all", "min")
    for heading in headings:
        table.add_column(heading, justify="left" if not heading else "right")
    for row in rows:
        table.add_row(
            row.name,
            str(row.nodes),
            str(row.edges),
            f"{row.analysis.median:.1f}",
            f"{row.analysis.minimum:.1f}",
            f"{1e3 * row.analysis.median / row.nodes:.1f}",
            f"{row.in_all.median:.1f}",
            f"{row.in_all.minimum:.1f}",
        )
    return table


def main(
    repeat: Annotated[int, typer.Option(help="Measure each graph this many times.", min=6)] = 7,
    json_file: JsonFile = None,
) -> None:
    """Print the analysis time of each model, and of a growing graph."""
    graphs = {name: definition(name) for name in MODELS}
    models = measure(graphs, repeat)
    growing = measure(
        {f"{times}x {LARGEST}": replicated(graphs[LARGEST], times) for times in TIMES}, repeat
    )
    console = Console()
    console.print(describe())
    of = f"ms, median of {repeat}"
    console.print(table_of(f"analysis of a training graph, {of}", models))
    console.print(table_of(f"the same graph several times in one, {of}", growing))
    first, last = growing[0], growing[-1]
    console.print(
        f"{last.nodes / first.nodes:.2f} times the nodes take "
        f"{last.analysis.median / first.analysis.median:.2f} times as long"
    )
    rows = {"models": models, "growing": growing}
    save(json_file, {name: [row.as_dict() for row in some] for name, some in rows.items()})


if __name__ == "__main__":
    run_command(main)
