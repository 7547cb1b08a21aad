"""docs/benchmarks.md: puts what was measured between the marks of the page."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import mean

from ..report import Result, Row, Times, ratio_of
from .pictures import SMOOTHED

Rows = Sequence[Row]

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def write(machine: str, results: Mapping[str, Result]) -> str:
    """Return PAGE with what `results` has, between its marks; other sections say that they lack."""
    filled = {"machine": machine, "paper": "Not measured.", "outcome": ""}
    for name, made in SECTIONS.items():
        filled[name] = "Not measured."
        if name in results:
            picture = f"![{ALTERNATIVES[name]}](images/paper_{name}.svg)"
            filled[name] = f"{made(results[name].rows)}\n\n{picture}"
    if "convergence" in results:
        filled["outcome"] = _outcome(results["convergence"].rows)
    named = [results[name] for name in ("models", "scaling") if name in results]
    steps = [row for result in named for row in _by_name(result.rows)]
    if steps:
        best = max(steps, key=_gain)
        step = best["rdma"]
        ours = f"{_gain(best):.1f}x (a step of {step.name}, workers: {step.test})"
        lines = [
            ("most that a benchmark gained over gRPC", "25x", ours),
            (
                "most that one gained over an RPC that uses RDMA",
                "2.7x (169 % more)",
                "not measured: TensorFlow 2.21 has none",
            ),
        ]
        filled["paper"] = table(("", "paper", "here"), lines)
    page = PAGE.read_text()
    for name, text in filled.items():
        before, _, rest = page.partition(f"<!-- {name} -->")
        between, mark, after = rest.partition(f"<!-- /{name} -->")
        if not mark:
            raise ValueError(f"{PAGE} has no marks of {name}")
        gap = between[: len(between) - len(between.lstrip())]
        page = f"{before}<!-- {name} -->{gap}{text}{gap}{mark}{after}"
    return page


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table of Markdown."""
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _by_name(rows: Rows) -> list[dict[str, Row]]:
    """The rows of each test and name by protocol; edges with hops of the same size."""
    found: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        if not row.test.startswith("step"):
            test = "edge" if row.test == "hop" else row.test
            found.setdefault((test, row.name), {})[row.protocol] = row
    return list(found.values())


def _times(row: Row) -> Times:
    assert row.times is not None
    return row.times


def _cell(row: Row) -> str:
    times = _times(row)
    return f"{times.p50:.1f}" if times.resolved else f"< {max(times.high or 0, 0):.0f}"


def _ratio(slow: Row, fast: Row, digits: int = 2) -> str:
    found = ratio_of(_times(slow), _times(fast))
    return "noisy" if found is None else "> " * found[1] + f"{found[0]:.{digits}f}x"


def _message_sizes(rows: Rows) -> str:
    """Return the table of `bench.paper.experiments.WAYS`, one process and the floor."""
    ways = ("grpc", "rdma", "copying", "dynamic", "local", "floor")
    heads = ("tensor", "gRPC", "rdma", "zero copy off", "static off", "one process", "floor")
    lines = (
        [
            row["rdma"].name,
            *(_cell(row[way]) for way in ways),
            _ratio(row["grpc"], row["rdma"], 1),
        ]
        for row in _by_name(rows)
    )
    return table((*heads, "gRPC / rdma"), lines)


def _static_beside_dynamic(rows: Rows) -> str:
    heads = ("tensor", "gRPC", "rdma", "static off", "one process", "gRPC / rdma")
    lines = (
        [
            row["rdma"].name,
            *(_cell(row[way]) for way in ("grpc", "rdma", "dynamic", "local")),
            *(_ratio(row[way], row["rdma"]) for way in ("grpc", "dynamic")),
        ]
        for row in _by_name(rows)
    )
    return table((*heads, "static off / rdma"), lines)


def _gain(row: Mapping[str, Row]) -> float:
    return _times(row["grpc"]).p50 / _times(row["rdma"]).p50


def _step_cells(row: dict[str, Row]) -> list[str]:
    times = [f"{_times(row[protocol]).p50 / 1e3:.1f}" for protocol in ("grpc", "rdma")]
    return [*times, f"{_gain(row):.2f}x"]


def _ends(row: Row) -> list[str]:
    return [f"{row.more['MiB/step']:.0f}", "NOT EQUAL" if row.wrong else "equal"]


def _models(rows: Rows) -> str:
    heads = ("model", "variables, MiB", "gRPC, ms", "rdma, ms", "gRPC / rdma", "one process, ms")
    lines = []
    for row in _by_name(rows):
        mib, equal = _ends(row["rdma"])
        named = row["rdma"].name, f"{row['rdma'].bytes / 2**20:.0f}"
        local = f"{_times(row['local']).p50 / 1e3:.1f}"
        static = f"{row['rdma'].more['static %']:g} %"
        lines.append([*named, *_step_cells(row), local, mib, static, equal])
    return table((*heads, "MiB per step", "static", "losses"), lines)


def _scaling(rows: Rows) -> str:
    heads = ("model", "workers", "gRPC, ms", "rdma, ms", "gRPC / rdma", "MiB per step", "losses")
    lines = (
        [row["rdma"].name, row["rdma"].test, *_step_cells(row), *_ends(row["rdma"])]
        for row in _by_name(rows)
    )
    return table(heads, lines)


def _outcome(rows: Rows) -> str:
    losses = [row.series["losses"] for row in rows]
    equal = "equal bit for bit, so the curves differ in time only"
    equal = equal if losses[0] == losses[1] else "NOT equal"
    return f"The losses of all {len(losses[0])} steps are {equal}."


def _convergence(rows: Rows) -> str:
    by_protocol = {row.protocol: row.series for row in rows}
    grpc, rdma = by_protocol["grpc"], by_protocol["rdma"]
    lines = []
    for goal in (1.0, 0.5, 0.25, 0.1):
        slow, fast = _seconds_to(grpc, goal), _seconds_to(rdma, goal)
        if slow is not None and fast is not None:
            lines.append([f"loss {goal}", f"{slow:.2f}", f"{fast:.2f}", f"{slow / fast:.2f}x"])
    slow, fast = sum(grpc["seconds"]), sum(rdma["seconds"])
    accuracy = next(row.more["accuracy"] for row in rows if row.protocol == "rdma")
    right = f"all steps, {100 * float(accuracy):.1f} % right on test images"
    lines.append([right, f"{slow:.2f}", f"{fast:.2f}", f"{slow / fast:.2f}x"])
    heads = ("seconds until", "gRPC", "rdma", "gRPC / rdma")
    return table(heads, lines)


def _seconds_to(series: Mapping[str, list[float]], goal: float) -> float | None:
    for step, seconds in enumerate(accumulate(series["seconds"]), 1):
        if step >= SMOOTHED and mean(series["losses"][step - SMOOTHED : step]) <= goal:
            return seconds
    return None


SECTIONS: dict[str, Callable[[Rows], str]] = {
    "message_sizes": _message_sizes,
    "soft_roce_message_sizes": _static_beside_dynamic,
    "models": _models,
    "scaling": _scaling,
    "convergence": _convergence,
}
ALTERNATIVES = {
    "message_sizes": "time per edge by size",
    "soft_roce_message_sizes": "time per edge by size, over Soft-RoCE",
    "models": "time per step of each model",
    "scaling": "time per step by workers",
    "convergence": "loss against time",
}
