"""Measures the time of TensorFlow's collectives, over gRPC and over rdma in turns.

All workers time a function with few repetitions of the collective and one with many. The difference
excludes the cost of calling a function.

With --mpi, an all-reduce of MPI between as many processes is measured in the same turns.

usage: python -m bench.collectives [--ops all_reduce,all_gather] [--sizes 1048576] [--json FILE]
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from . import numpy_collectives
from .support.collective_cluster import OPS, CollectiveCluster
from .support.counters import sent_since
from .support.exit import NotAvailableError, run_command
from .support.hosts import Layout, everything_here
from .support.machine import describe
from .support.namespaces import measured_between
from .support.options import JsonFile, Repeat, Sizes, Veth, choose, save
from .support.sizes import parse_sizes, size_name
from .support.timing import plain, ratio, summarize

PROTOCOLS = ("grpc", "rdma")
SIZES = "4096,65536,1048576,16777216"
MPI_ITERATIONS = 20


def equal(op: str, results: Mapping[str, list[str]]) -> bool:
    """Whether the digests of all workers, by protocol, are what they should be.

    More than two workers reduce in another order than over gRPC.
    """
    if op == "all_reduce" and any(len(digests) > 2 for digests in results.values()):
        return all(len(set(digests)) == 1 for digests in results.values())
    return len({tuple(digests) for digests in results.values()}) == 1


def mpi_times(op: str, size: int, ranks: int) -> list[float]:
    """Return the microseconds of an operation of MPI."""
    job = numpy_collectives.Job([op], [size], ranks, MPI_ITERATIONS, {})
    rows = numpy_collectives.measure(["mpi"], job, 1, lambda turns, _: turns)
    us: list[float] = rows["mpi", op, size]["us"]
    return us


def measure(
    ops: list[str],
    sizes: list[int],
    workers: int,
    repeat: int,
    mpi: bool = False,
    layout: Layout = everything_here,
) -> list[dict[str, Any]]:
    """Return rows in microseconds. `equal`: see equal()."""
    with ExitStack() as stack:
        clusters = {
            protocol: stack.enter_context(CollectiveCluster(workers, protocol, layout=layout))
            for protocol in PROTOCOLS
        }
        return measure_on(clusters, ops, sizes, repeat, mpi_ranks=workers if mpi else 0)


def measure_on(
    clusters: Mapping[str, CollectiveCluster],
    ops: list[str],
    sizes: list[int],
    repeat: int,
    track: Callable[..., Iterable[tuple[str, int]]] = track,
    mpi_ranks: int = 0,
) -> list[dict[str, Any]]:
    """Rows in microseconds for each of the running clusters, by its protocol.

    `equal`: see equal(); `digests` are of the workers' results, and `…_sent` is what all workers
    sent by mode for the row, None over gRPC. `mpi` is of the all-reduce of as many processes.
    """
    rows = []
    for op, size in track([(op, size) for op in ops for size in sizes], "measuring"):
        before = {protocol: cluster.counted() for protocol, cluster in clusters.items()}
        times: dict[str, list[float]] = {protocol: [] for protocol in clusters}
        results: dict[str, list[str]] = {}
        mpi: list[float] = []
        for cluster in clusters.values():
            cluster.warm_up(op, size)
        for _ in range(repeat):
            for protocol, cluster in clusters.items():
                us, results[protocol] = cluster.time(op, size)
                times[protocol].append(us)
            if mpi_ranks > 0 and op == "all_reduce":
                mpi += mpi_times(op, size, mpi_ranks)
        row: dict[str, Any] = {"op": op, "bytes": size, "digests": results}
        row["equal"] = equal(op, results)
        if mpi:
            row["mpi"] = summarize(mpi)
        for protocol, cluster in clusters.items():
            row[protocol] = summarize(times[protocol])
            row[f"{protocol}_sent"] = sent_since(before[protocol], cluster.counted())
        rows.append(row)
    return rows


def show(rows: list[dict[str, Any]], title: str) -> Table:
    """Return a table of the rows; times are in us."""
    table = Table(title=title)
    for heading in ("collective", "size", "gRPC", "rdma", "gRPC/rdma", "MPI", "bits"):
        table.add_column(heading, justify="left" if heading == "collective" else "right")
    for row in rows:
        table.add_row(
            row["op"],
            size_name(row["bytes"]),
            *(f"{row[protocol].median:.0f}" for protocol in PROTOCOLS),
            ratio(row["grpc"], row["rdma"]),
            f"{row['mpi'].median:.0f}" if "mpi" in row else "",
            "equal" if row["equal"] else "DIFFER",
        )
    return table


def main(
    ops: Annotated[
        str, typer.Option(help="Measure these collectives, separated by commas.")
    ] = ",".join(OPS),
    sizes: Sizes = SIZES,
    workers: Annotated[int, typer.Option(min=2, help="Start this many workers.")] = 2,
    repeat: Repeat = 9,
    mpi: Annotated[bool, typer.Option(help="Also measure the all-reduce of MPI.")] = False,
    veth: Veth = "",
    json_file: JsonFile = None,
) -> None:
    """Print the time per collective of gRPC and of rdma."""
    chosen = choose(ops, OPS, "collective", "--ops")
    missing = numpy_collectives.find_mpi()[1] if mpi else ""
    if missing:
        raise NotAvailableError(missing)
    with measured_between(veth, in_turn=True) as layout:
        rows = measure(chosen, parse_sizes(sizes), workers, repeat, mpi, layout)
    console = Console()
    console.print(describe())
    console.print(show(rows, f"time per collective, us, {workers} workers, median of {repeat}"))
    save(json_file, {"workers": workers, "repeat": repeat, "rows": plain(rows)})
    if not all(row["equal"] for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    run_command(main)
