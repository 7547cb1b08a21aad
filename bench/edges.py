"""Measures the time that an edge between two tasks adds to a computation.

A chain of `x + 1` and `x * 0.5` alternates between two tasks. The first one runs its session, as a
training script does that starts a server and runs steps on it. The time of the same chain in one
process, with the same session options, is subtracted from its step, and the rest is divided by the
number of edges. Nothing else is subtracted. So an edge's time includes its share of the fixed cost
of a step over two tasks, which is also measured alone: a step with one edge of 4 bytes, minus the
same step in one process. It also includes what the edge costs the computation: memory that is not
in the cache, and operations in place that are only possible in one process.

Two columns are times of a whole hop, arithmetic included. "one process" is the chain in one
process. The floor is two processes that compute the same in turns, and do nothing else
(`bench.support.floor`), with one thread per hop where TensorFlow uses two: on memory that they
share, or between two hosts on what they send each other over one TCP connection. A hop over an edge
takes the time of the edge and of one process together.

gRPC, rdma, rdma without static edges, one process and the floor take turns in one run, in another
order in each round (`bench.support.turns`). In each turn a step warms up, and the next ones are
measured: ten if they move up to 6.4 MB, two if they move more than 21. The results of all chains
are compared with one process, bit for bit. `bench.references` explains the second table.

usage: python -m bench.edges [--sizes 4,4096] [--repeat 15] [--veth cubic] [--json FILE]
"""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from . import references
from .chains import COMPUTED, Chain, RemoteChain, fitting, on_each
from .remote_session import SESSION_TASK
from .support.cluster import Cluster
from .support.counters import sent_since
from .support.exit import run_command
from .support.floor import Floor, floor_between
from .support.hosts import Layout, across, everything_here, reached
from .support.machine import describe
from .support.namespaces import measured_between
from .support.options import Hosts, JsonFile, Repeat, Sizes, Veth, parse_hosts, save
from .support.sizes import parse_sizes, size_name
from .support.timing import Summary, plain, ratio, summarize
from .support.turns import rounds

SIZES = "4,65536,1048576,4194304,16777216"
HOPS = (2, 12, 48)  # of a chain; the most that fit
JOBS = ("a", "b")
# Of a turn: short steps need more of them to rise above the noise.
MEASURED_STEPS = (2, 10)
MEASURED_BYTES = 64_000_000
CONNECT_SECONDS = 60.0  # to another host
Way = tuple[str, dict[str, str]]  # a protocol, and settings
WAYS: dict[str, Way] = {
    "grpc": ("grpc", {}),
    "rdma": ("rdma", {}),
    "dynamic": ("rdma", {"RDMA_TRANSPORT_STATIC": "off"}),
}
ONE_DEVICE = ("/cpu:0", "/cpu:0")
Steps = Mapping[str, Chain | RemoteChain | Floor]


@contextmanager
def started(
    ways: Mapping[str, Way], layout: Layout = everything_here
) -> Iterator[dict[str, Cluster]]:
    """A cluster of JOBS for each way, whose first job runs chains."""
    masters = {JOBS[0]: SESSION_TASK}
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                Cluster(dict.fromkeys(JOBS, 1), *way, layout=layout, programs=masters)
            )
            for name, way in ways.items()
        }


def _chains(
    stack: ExitStack, clusters: Mapping[str, Cluster], size: int, hops: int, jobs: tuple[str, str]
) -> dict[str, Chain | RemoteChain]:
    """A computed chain on each cluster, and as "local" one in this process."""
    return on_each(stack, clusters, jobs, size, [hops], COMPUTED, ONE_DEVICE)


def measured_steps(size: int, hops: int) -> int:
    """How many steps of a chain a turn measures."""
    least, most = MEASURED_STEPS
    return max(least, min(most, MEASURED_BYTES // (size * hops)))


def _microseconds(steps: Steps, size: int, hops: int, repeat: int) -> dict[str, list[float]]:
    """The mean step of each turn, which carries `size` bytes over each of its edges."""
    lengths = [hops] * (1 + measured_steps(size, hops))
    times: dict[str, list[float]] = {name: [] for name in steps}
    for name in rounds(steps, repeat):
        _, *measured = steps[name].seconds(lengths)
        times[name].append(1e6 * statistics.fmean(measured))
    return times


def _difference(times: Mapping[str, list[float]], name: str, hops: int) -> Summary:
    """What an edge adds to one process, for the step of each turn."""
    pairs = zip(times[name], times["local"], strict=True)
    return summarize([(step - local) / hops for step, local in pairs])


def measure_on(
    clusters: Mapping[str, Cluster],
    sizes: list[int],
    repeat: int,
    jobs: tuple[str, str],
    track: Callable[..., Iterable[int]],
    hops: int = 0,
) -> list[dict[str, Any]]:
    """Rows in microseconds: per edge for each of the running clusters, by its name.

    Edges are between the first tasks of the two jobs. "local" and "floor" are times of a whole hop.
    `hops` is the length of the chain, 0 for the longest of HOPS that fits. `wrong` counts wrong
    results, and `…_sent` is what all tasks of a cluster sent by mode for its row, None over gRPC.
    """
    rows = []
    layout = next(iter(clusters.values())).layout
    places = layout(jobs[0], 0), layout(jobs[1], 0)
    for size in track(sizes, "measuring edges"):
        length = hops or fitting(HOPS, size)[-1]
        with ExitStack() as stack:
            chains = _chains(stack, clusters, size, length, jobs)
            steps: Steps = {**chains, "floor": floor_between(stack, size, *places)}
            before = {name: cluster.counted() for name, cluster in clusters.items()}
            wrong = {name: each.wrong(length) for name, each in steps.items()}
            times = _microseconds(steps, size, length, repeat)
            row: dict[str, Any] = {"bytes": size, "hops": length, "wrong": sum(wrong.values())}
            for name, cluster in clusters.items():
                row[name] = _difference(times, name, length)
                row[f"{name}_sent"] = sent_since(before[name], cluster.counted())
            for name in ("local", "floor"):
                row[name] = summarize([time / length for time in times[name]])
            rows.append(row | {f"{name}_wrong": count for name, count in wrong.items()})
    return rows


def fixed_cost(
    clusters: Mapping[str, Cluster], repeat: int, jobs: tuple[str, str]
) -> dict[str, Summary]:
    """Microseconds that a step with one edge of 4 bytes adds to that step in one process.

    "local" is the step in one process.
    """
    with ExitStack() as stack:
        chains = _chains(stack, clusters, 4, 1, jobs)
        times = _microseconds(chains, 4, 1, repeat)
    costs = {name: _difference(times, name, 1) for name in clusters}
    return costs | {"local": summarize(times["local"])}


def _cells(value: Summary) -> list[str]:
    middle = f"{value.median:.1f}" if value.resolved else f"< {max(value.high, 0):.0f}"
    return [middle, f"({value.minimum:.0f}, {value.p90:.0f})"]


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def show(rows: list[dict], cost: Mapping[str, Summary], repeat: int) -> Table:
    """The table of computed edges; its last row is the fixed cost of a step."""
    spread, title = "(min, p90)", f"computed edges: us that an edge adds, median of {repeat}"
    ways = ("gRPC", spread, "static", spread, "dynamic", spread, "gRPC/static", "gRPC/dynamic")
    table = _table(title, "size", *ways, "one process", "floor", "#wrong")
    for row in rows:
        table.add_row(
            size_name(row["bytes"]),
            *(cell for name in WAYS for cell in _cells(row[name])),
            *(ratio(row["grpc"], row[name]) for name in ("rdma", "dynamic")),
            *(_cells(row[name])[0] for name in ("local", "floor")),
            str(row["wrong"]),
            end_section=row is rows[-1],
        )
    table.add_row(
        "step",
        *(cell for name in WAYS for cell in _cells(cost[name])),
        *(ratio(cost["grpc"], cost[name]) for name in ("rdma", "dynamic")),
        _cells(cost["local"])[0],
    )
    return table


def show_references(rows: list[dict], repeat: int) -> Table:
    """Return a table of the rows of so many repetitions."""
    title = f"passing a reference, nothing is read: us per edge, median of {repeat}"
    spread = "(min, p90)"
    ways = ("gRPC", spread, "static", spread, "dynamic", spread, "local")
    table = _table(title, "size", *ways, "#wrong")
    for row in rows:
        cells = [cell for name in WAYS for cell in _cells(row[name])]
        table.add_row(size_name(row["bytes"]), *cells, _cells(row["local"])[0], str(row["wrong"]))
    return table


def _tensors_by_mode(rows: list[dict]) -> dict[str, int]:
    """What rdma sent for the rows."""
    modes = rows[0]["rdma_sent"]
    return {mode: sum(row["rdma_sent"][mode]["tensors"] for row in rows) for mode in modes}


def main(
    sizes: Sizes = SIZES,
    repeat: Repeat = 15,
    hops: Annotated[
        int,
        typer.Option(
            help="Set the edges of the chains; 0: 48 computed edges, references by speed.", min=0
        ),
    ] = 0,
    hosts: Hosts = "",
    veth: Veth = "",
    with_references: Annotated[
        bool, typer.Option("--references/--no-references", help="Measure references too.")
    ] = True,
    json_file: JsonFile = None,
) -> None:
    """Print the time that an edge between two tasks adds, over gRPC and over rdma.

    The first table is of tensors that are computed, the second of references that are passed.
    """
    if hops and (hops % 2 or hops < 4):
        raise typer.BadParameter(
            f"{hops} is not 0 or an even number of at least 4", param_hint="--hops"
        )
    if hosts and veth:
        raise typer.BadParameter("not together with --hosts", param_hint="--veth")
    wanted, places = parse_sizes(sizes), parse_hosts(hosts)
    passed: list[dict[str, Any]] = []
    with ExitStack() as stack:
        others = stack.enter_context(reached(places[1:], CONNECT_SECONDS))
        here = stack.enter_context(measured_between(veth))
        layout = across(places[0], others) if places else here
        clusters = stack.enter_context(started(WAYS, layout))
        rows = measure_on(clusters, wanted, repeat, JOBS, track, hops)
        cost = fixed_cost(clusters, repeat, JOBS)
        if with_references:
            passed = references.measure_on(clusters, wanted, repeat, JOBS, track, hops)
    console = Console()
    console.width = max(console.width, 150)
    modes = _tensors_by_mode(rows)
    console.print(describe())
    console.print(f"rdma: tensors of computed edges by mode: {modes}")
    console.print(show(rows, cost, repeat))
    console.print(
        "static: rdma. dynamic: rdma with RDMA_TRANSPORT_STATIC=off. one process, floor: a whole "
        "hop with its arithmetic; the floor computes on one thread, on shared memory or, between "
        "hosts, on what one TCP connection carries. step: what a step with one "
        "edge of 4 B adds, and that step in one process. <, >: the value is a 95 % bound, "
        "because of noise. noisy: there is none."
    )
    if passed:
        console.print(show_references(passed, repeat))
        console.print("local: between two CPU devices of one process.")
    report = {"repeat": repeat, "tensors_by_mode": modes, "rows": plain(rows)}
    report |= {"fixed_cost": plain([cost])[0], "references": plain(passed)}
    save(json_file, report)
    if any(row["wrong"] for row in rows + passed):
        raise typer.Exit(1)


if __name__ == "__main__":
    run_command(main)
