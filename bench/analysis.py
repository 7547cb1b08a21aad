"""Measures the time to analyze each model's training graph, and whether it is linear in its size.

There are one parameter server and two workers. To test linearity, one graph contains one, two or
four copies of inception_v3, each in its own name scope. "analysis" is the time that the analyzer
reports; "in all" is `graph_analyzer.analyze()`, which also serializes the graph and reads the plan.

usage: python -m bench.analysis [--repeat 7] [--json]
"""

import time
from functools import partial
from typing import Annotated, Any

import typer

from .models import MODELS
from .options import both, performed
from .report import MIN_SAMPLES, Result, Row, times_of
from .support.exit import run_command
from .support.tf_import import import_tensorflow
from .support.turns import in_turns
from .where import Measure, Where

PS = "/job:ps/task:0"
WORKERS = ["/job:worker/task:0", "/job:worker/task:1"]
CLUSTER = {"ps": 1, "worker": len(WORKERS)}
BATCH = 2
LARGEST = "inception_v3"
TIMES = (1, 2, 4)


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


def timed(graph: Any) -> tuple[float, float]:
    """Analyze a graph; return the milliseconds of the analysis, and in all."""
    from graph_analyzer import analyze

    start = time.perf_counter()
    plan = analyze(graph, CLUSTER)
    return 1e3 * plan.analysis_seconds, 1e3 * (time.perf_counter() - start)


def measure(test: str, graphs: dict[str, Any], repeat: int) -> list[Row]:
    """Analyze each graph several times, in turns, so that noise affects all graphs alike."""
    from graph_analyzer import analyze

    plans = {name: analyze(graph, CLUSTER) for name, graph in graphs.items()}
    turns = in_turns({name: partial(timed, graph) for name, graph in graphs.items()}, repeat)
    rows = []
    for name, plan in plans.items():
        parts, in_all = zip(*turns[name], strict=True)
        times = times_of([1e3 * each for each in parts])
        row = Row(test, name, 0, "local", repeat, times)
        row.more.update({"nodes": plan.nodes, "edges": len(plan.edges)})
        row.more.update({"us per node": times.p50 / plan.nodes, "in all, ms": times_of(in_all).p50})
        rows.append(row)
    return rows


def analysis(where: Where, repeat: int) -> Result:
    """Rows of each model, and of the largest one several times in one graph."""
    where.bar.at(0, "making the graphs")
    import_tensorflow()
    title = "analysis of a training graph, without reading it and its plan"
    result = Result("analysis", title, {"repeat": repeat}, "p50", unit="ms")
    graphs = {name: definition(name) for name in MODELS}
    result.rows += measure("model", graphs, repeat)
    where.bar.at(0.5, "growing graphs")
    growing = {f"{times}x {LARGEST}": replicated(graphs[LARGEST], times) for times in TIMES}
    result.rows += measure("growing", growing, repeat)
    return result


@performed(both)
def main(
    repeat: Annotated[
        int, typer.Option(help="Measure each graph this many times.", min=MIN_SAMPLES)
    ] = 7,
) -> Measure:
    """Print the analysis time of each model, and of a growing graph."""
    return lambda where: analysis(where, repeat)


if __name__ == "__main__":
    run_command(main)
