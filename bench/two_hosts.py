"""Measures all-reduces and all-to-alls between two hosts: network namespaces of this machine.

The hosts have no memory in common, and the link between them can be limited, so that the network is
what a collective waits for. Ranks are on the two hosts in turn. The fabric between them is
libfabric over TCP. Needs root, ip and tc (iproute2), and libfabric.

TensorFlow's collectives are measured over gRPC and over rdma in turns, as in `bench.collectives`.
Those of NumPy arrays are measured as in `bench.numpy_collectives`, in turns with ranks that do not
share memory (`RDMA_TRANSPORT_FABRIC=libfabric`). These know no hosts: a large all-reduce then takes
two phases, where ranks that share memory combine on each host first.

usage: python -m bench.two_hosts [--workers 4] [--rates 1gbit,none] [--sizes 1MiB,16MiB] ...
"""

import json
import secrets
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from .collectives import measure_on
from .support.collective_cluster import CollectiveCluster
from .support.exit import NotAvailableError, run_command
from .support.machine import describe
from .support.namespaces import Host, Hosts, UnavailableError
from .support.options import JsonFile, Sizes, choose, save
from .support.sizes import parse_sizes, size_name
from .support.timing import MIN_SAMPLES, plain

UNLIMITED = "none"
SIZES = "128KiB,1MiB,16MiB"
OPS = ("all_reduce", "all_to_all")
FRONT_ENDS = ("tensorflow", "numpy")
ITERATIONS = 20
_RANK = Path(__file__).parent / "support" / "numpy_rank.py"
NO_SHARED_MEMORY = {"RDMA_TRANSPORT_FABRIC": "libfabric"}


def over_tensorflow(
    hosts: Hosts[Host], ops: list[str], sizes: list[int], workers: int, repeat: int
) -> list[dict[str, Any]]:
    """Return rows with the medians of gRPC and rdma, in us."""
    with ExitStack() as stack:
        clusters = {
            protocol: stack.enter_context(CollectiveCluster(workers, protocol, layout=hosts.place))
            for protocol in ("grpc", "rdma")
        }
        rows = measure_on(clusters, ops, sizes, repeat, lambda each, _: each)
    return [
        {
            **{"front_end": "tensorflow", "op": row["op"], "bytes": row["bytes"]},
            "us": {protocol: row[protocol].median for protocol in clusters},
            "right": row["equal"],
        }
        for row in rows
    ]


def run_ranks(
    hosts: Hosts[Host], ops: Sequence[str], sizes: Sequence[int], ranks: int, more: dict[str, str]
) -> list[dict[str, Any]]:
    """Run the ranks of one turn; return the rows of rank 0."""
    host, _, port = hosts.first.address().rpartition(":")
    arguments = [str(_RANK), "rdma", ",".join(ops), ",".join(map(str, sizes)), str(ITERATIONS)]
    job = secrets.token_hex(8)
    with tempfile.TemporaryFile("w+") as errors:
        processes = []
        try:
            for rank in range(ranks):
                launched = {"RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": host}
                launched |= {"MASTER_PORT": port, "TORCHELASTIC_RUN_ID": job}
                environment = {name: str(value) for name, value in launched.items()} | more
                where = hosts.place("worker", rank)
                processes.append(where.start(arguments, environment, errors))
            assert processes[0].stdout is not None
            line = processes[0].stdout.readline()
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if not line:
            errors.seek(0)
            raise NotAvailableError(f"the ranks failed: {errors.read().strip()[-500:]}")
    rows: list[dict[str, Any]] = json.loads(line)
    return rows


def over_numpy(
    hosts: Hosts[Host], ops: list[str], sizes: list[int], ranks: int, rounds: int
) -> list[dict[str, Any]]:
    """Return rows with the medians of ranks that share memory on each host, and of others."""
    systems = {"rdma": {}, "no shared memory": NO_SHARED_MEMORY}
    samples: dict[tuple[str, int], dict[str, list[float]]]
    samples = defaultdict(lambda: {name: [] for name in systems})
    wrong: dict[tuple[str, int], int] = defaultdict(int)
    # An all-to-all's size is that of a rank's whole array, as in TensorFlow.
    parts = {"all_reduce": 1, "all_to_all": ranks}
    for _ in range(rounds):
        for name, more in systems.items():
            for op in ops:
                of_part = [max(size // parts[op], 4) for size in sizes]
                found = run_ranks(hosts, [op], of_part, ranks, more)
                for size, row in zip(sizes, found, strict=True):
                    samples[op, size][name] += row["us"]
                    wrong[op, size] += row["wrong"]
    return [
        {
            **{"front_end": "numpy", "op": op, "bytes": size},
            "us": {name: statistics.median(us) for name, us in each.items()},
            "right": wrong[op, size] == 0,
        }
        for (op, size), each in samples.items()
    ]


def show(rows: list[dict[str, Any]], title: str) -> Table:
    """Return a table of the rows; times are in ms."""
    table = Table(title=title)
    headings = ("front end", "collective", "workers", "link", "size")
    for heading in (*headings, "beside, ms", "rdma, ms", "ratio", "results"):
        table.add_column(heading, justify="right")
    for row in rows:
        (beside,) = (name for name in row["us"] if name != "rdma")
        other, ours = row["us"][beside] / 1e3, row["us"]["rdma"] / 1e3
        table.add_row(
            *(row["front_end"], row["op"], str(row["workers"]), row["rate"]),
            *(size_name(row["bytes"]), f"{other:.3g} ({beside})", f"{ours:.3g}"),
            *(f"{other / ours:.2f}", "right" if row["right"] else "WRONG"),
        )
    return table


def main(
    ops: Annotated[str, typer.Option(help="Measure these collectives.")] = "all_reduce",
    front_ends: Annotated[
        str, typer.Option(help="Measure from these, separated by commas.")
    ] = ",".join(FRONT_ENDS),
    workers: Annotated[
        str, typer.Option(help="Start these numbers of workers on both hosts together.")
    ] = "4",
    rates: Annotated[
        str, typer.Option(help="Limit the link to these rates, separated by commas.")
    ] = f"1gbit,{UNLIMITED}",
    sizes: Sizes = SIZES,
    repeat: Annotated[
        int,
        typer.Option(
            "--repeat", "--iterations", min=1, help="Measure each row this many times, in turns."
        ),
    ] = 6,
    json_file: JsonFile = None,
) -> None:
    """Print the time per collective between two hosts."""
    chosen = choose(ops, OPS, "collective", "--ops")
    fronts = choose(front_ends, FRONT_ENDS, "front end", "--front-ends")
    wanted = parse_sizes(sizes)
    if "tensorflow" in fronts and repeat < MIN_SAMPLES:
        raise typer.BadParameter(
            f"TensorFlow's are measured at least {MIN_SAMPLES} times", param_hint="--repeat"
        )
    measures = {"tensorflow": over_tensorflow, "numpy": over_numpy}
    rows = []
    try:
        hosts = Hosts(Host)
    except UnavailableError as error:
        raise NotAvailableError(str(error)) from None
    try:
        for rate in rates.split(","):
            for host in hosts.both:
                host.limit("" if rate == UNLIMITED else rate)
            for size in map(int, workers.split(",")):
                for front in fronts:
                    measured = measures[front](hosts, chosen, wanted, size, repeat)
                    rows += [row | {"workers": size, "rate": rate} for row in measured]
    except UnavailableError as error:
        raise NotAvailableError(str(error)) from None
    finally:
        hosts.end()
    console = Console(width=120)
    console.print(describe())
    console.print(show(rows, f"between two network namespaces, medians of {repeat}"))
    save(json_file, {"repeat": repeat, "rows": plain(rows)})
    if not all(row["right"] for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    run_command(main)
