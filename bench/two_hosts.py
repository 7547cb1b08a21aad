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
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from .collectives import collectives
from .options import both, performed
from .report import MIN_SAMPLES, Result, Row, times_of
from .support.exit import NotAvailableError, run_command
from .support.namespaces import Host, Hosts, UnavailableError
from .support.options import Sizes, choose
from .support.sizes import parse_sizes, size_name
from .where import Measure, Where

UNLIMITED = "none"
SIZES = "128KiB,1MiB,16MiB"
OPS = ("all_reduce", "all_to_all")
FRONT_ENDS = ("tensorflow", "numpy")
ITERATIONS = 20
_RANK = Path(__file__).parent / "support" / "numpy_rank.py"
NO_SHARED_MEMORY: dict[str, str] = {"RDMA_TRANSPORT_FABRIC": "libfabric"}


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
) -> Result:
    """Rows of ranks that share memory on each host, and of others."""
    systems = {"rdma": {}, "no shared memory": NO_SHARED_MEMORY}
    samples: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    wrong: dict[tuple[str, int, str], int] = defaultdict(int)
    # An all-to-all's size is that of a rank's whole array, as in TensorFlow.
    parts = {"all_reduce": 1, "all_to_all": ranks}
    for _ in range(rounds):
        for name, more in systems.items():
            for op in ops:
                of_part = [max(size // parts[op], 4) for size in sizes]
                found = run_ranks(hosts, [op], of_part, ranks, more)
                for size, measured in zip(sizes, found, strict=True):
                    samples[op, size, name] += measured["us"]
                    wrong[op, size, name] += measured["wrong"]
    title = f"{', '.join(ops)} of NumPy arrays of {ranks} ranks"
    result = Result("numpy", title, {}, "p50", against="no shared memory")
    for (op, size, name), us in samples.items():
        other = times_of(samples[op, size, "no shared memory"]).p50
        row = Row(op, size_name(size), size, name, len(us), times_of(us))
        ratio = other / times_of(us).p50 if name == "rdma" else None
        result.rows.append(replace(row, wrong=wrong[op, size, name], ratio=ratio))
    return result


def two_hosts(
    where: Where,
    ops: list[str],
    fronts: Sequence[str],
    numbers: Sequence[int],
    rates: Sequence[str],
    sizes: list[int],
    repeat: int,
) -> Iterator[Result]:
    """A result for each rate, number of workers and front end."""
    try:
        hosts = Hosts(Host)
    except UnavailableError as error:
        raise NotAvailableError(str(error)) from None
    here = replace(where, layout=hosts.place)
    try:
        for rate in rates:
            for host in hosts.both:
                host.limit("" if rate == UNLIMITED else rate)
            for number in numbers:
                for front in fronts:
                    if front == "tensorflow":
                        result = collectives(here, ops, sizes, number, repeat)
                    else:
                        result = over_numpy(hosts, ops, sizes, number, repeat)
                    result.options |= {"workers": number, "rate": rate, "repeat": repeat}
                    result.title += f" on two hosts, link: {rate}"
                    yield result
    except UnavailableError as error:
        raise NotAvailableError(str(error)) from None
    finally:
        hosts.end()


@performed(both)
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
) -> Measure:
    """Print the time per collective between two hosts."""
    chosen = choose(ops, OPS, "collective", "--ops")
    fronts = choose(front_ends, FRONT_ENDS, "front end", "--front-ends")
    wanted, numbers = parse_sizes(sizes), [int(each) for each in workers.split(",")]
    if "tensorflow" in fronts and repeat < MIN_SAMPLES:
        raise typer.BadParameter(
            f"TensorFlow's are measured at least {MIN_SAMPLES} times", param_hint="--repeat"
        )
    links = rates.split(",")
    return lambda where: two_hosts(where, chosen, fronts, numbers, links, wanted, repeat)


if __name__ == "__main__":
    run_command(main)
