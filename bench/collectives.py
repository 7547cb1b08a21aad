"""Measures the time of TensorFlow's collectives, over gRPC and over rdma in turns.

All workers time a function with few repetitions of the collective and one with many. The difference
excludes the cost of calling a function.

With --mpi, an all-reduce of MPI between as many processes is measured in the same turns.

usage: python -m bench.collectives [--ops all_reduce,all_gather] [--sizes 1048576] [--json]
"""

import functools
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Annotated

import typer

from . import numpy_collectives
from .options import between, performed
from .report import Result, Row, bus_gbps, times_of
from .support.collective_cluster import OPS, CollectiveCluster
from .support.counters import sent_since
from .support.exit import NotAvailableError, run_command
from .support.options import Repeat, Sizes, choose
from .support.sizes import parse_sizes, size_name
from .where import Measure, Where

SIZES = "4096,65536,1048576,16777216"
MPI_ITERATIONS = 20
NOTE = (
    "Times: the difference between functions with many and with few repetitions, per repetition, "
    "on the slowest worker. GB/s: the bytes of the tensor over p50; busbw: as nccl-tests define "
    "it. #wrong: results that are not equal bit for bit; all-reduces of more than two workers are "
    "compared with each other alone, for they sum in another order than over gRPC."
)


def wrong_of(op: str, results: Mapping[str, list[str]]) -> dict[str, int]:
    """How many digests of the workers, by protocol, are not what they should be.

    More than two workers reduce in another order than over gRPC.
    """
    first, *_ = results.values()
    alone = op == "all_reduce" and len(first) > 2
    return {
        name: sum(
            one != (own[0] if alone else other) for one, other in zip(own, first, strict=True)
        )
        for name, own in results.items()
    }


def mpi_times(op: str, size: int, ranks: int) -> list[float]:
    """Return the microseconds of an operation of MPI."""
    job = numpy_collectives.Job([op], [size], ranks, MPI_ITERATIONS, {})
    rows = numpy_collectives.measure(["mpi"], job, 1, lambda turns, _: turns)
    us: list[float] = rows["mpi", op, size]["us"]
    return us


def collectives(
    where: Where,
    ops: list[str],
    sizes: list[int],
    workers: int = 2,
    repeat: int = 9,
    mpi: bool = False,
) -> Result:
    """Rows of collectives of TensorFlow's workers, by protocol; MPI's of all-reduces."""
    options = {"workers": workers, "repeat": repeat}
    title = f"TensorFlow's {', '.join(ops)} of {workers} workers"
    result = Result("all-reduce" if ops == ["all_reduce"] else "collectives", title, options, "p50")
    with ExitStack() as stack:
        made = {}
        for protocol in where.protocols:
            where.bar.at(0, f"{protocol}: starting {workers} workers")
            made[protocol] = stack.enter_context(
                CollectiveCluster(workers, protocol, where.environment, layout=where.layout)
            )
        for op, size in where.bar.track([(op, size) for op in ops for size in sizes], "measuring"):
            ranks = workers if mpi and op == "all_reduce" else 0
            result.rows += _rows(op, size, made, repeat, ranks)
        result.add_traffic(made)
    result.notes.append(NOTE)
    result.compare()
    return result


def _rows(
    op: str, size: int, made: Mapping[str, CollectiveCluster], repeat: int, mpi_ranks: int
) -> list[Row]:
    before = {protocol: cluster.counted() for protocol, cluster in made.items()}
    times: dict[str, list[float]] = {protocol: [] for protocol in made}
    results: dict[str, list[str]] = {}
    mpi: list[float] = []
    for cluster in made.values():
        cluster.warm_up(op, size)
    for _ in range(repeat):
        for protocol, cluster in made.items():
            us, results[protocol] = cluster.time(op, size)
            times[protocol].append(us)
        if mpi_ranks:
            mpi += mpi_times(op, size, mpi_ranks)
    wrong = wrong_of(op, results)
    rows = []
    for protocol, samples in {**times, **({"mpi": mpi} if mpi else {})}.items():
        found = times_of(samples)
        gbps = size / found.p50 / 1e3 if found.resolved else None
        workers = len(results[next(iter(made))])
        ours = made.get(protocol)
        rows.append(
            Row(
                test=op,
                name=size_name(size),
                bytes=size,
                protocol=protocol,
                iterations=repeat,
                times=found,
                gbps=gbps,
                bus_gbps=bus_gbps(op, gbps, workers) if op == "all_reduce" else None,
                wrong=wrong.get(protocol),
                sent=sent_since(before[protocol], ours.counted()) if ours else None,
            )
        )
    return rows


@performed(functools.partial(between, in_turn=True))
def main(
    ops: Annotated[
        str, typer.Option(help="Measure these collectives, separated by commas.")
    ] = ",".join(OPS),
    sizes: Sizes = SIZES,
    workers: Annotated[int, typer.Option(min=2, help="Start this many workers.")] = 2,
    repeat: Repeat = 9,
    mpi: Annotated[bool, typer.Option(help="Also measure the all-reduce of MPI.")] = False,
) -> Measure:
    """Print the time per collective of gRPC and of rdma."""
    chosen, wanted = choose(ops, OPS, "collective", "--ops"), parse_sizes(sizes)
    missing = numpy_collectives.find_mpi()[1] if mpi else ""
    if missing:
        raise NotAvailableError(missing)
    return lambda where: collectives(where, chosen, wanted, workers, repeat, mpi)


if __name__ == "__main__":
    run_command(main)
