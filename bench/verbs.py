"""Measures the verbs fabric on Soft-RoCE between two emulated hosts, beside perftest and gRPC.

The fabric and perftest take turns, and so do TensorFlow's edges over the fabric and over gRPC, all
on the same link in one boot. The hosts are emulated on this machine's processors, so only
comparisons inside one run are meaningful: a card is a hundred times faster.

usage: python -m bench.verbs [--rounds 3] [--json]
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from tools.guest.guest import PYTHON, Guest
from tools.guest.machine import booted
from tools.guest.packages import UnavailableError

from .options import here, performed
from .report import MIN_SAMPLES, Result, Row, Times
from .support.exit import run_command
from .support.sizes import size_name
from .where import Measure, Where

SIZES = [64, 4096, 65536, 1048576, 4194304]
EDGE_SIZES = [4096, 8192, 16384, 65536, 262144, 1048576]
EDGE_HOPS = 16  # 48, as on one host, take too long here
MAX_BYTES = 24 << 20  # that one bandwidth moves
PORT = 7100
GID_INDEX = "1"  # of a guest's IPv4 address
# perftest's program, its column of interest, and what one unit of it is in ours.
PERFTEST = {
    "write_bw": ("ib_write_bw", 3, 2**20 / 1e9),
    "read_bw": ("ib_read_bw", 3, 2**20 / 1e9),
    "write_lat": ("ib_write_lat", 4, 1.0),
}
Figures = dict[tuple[str, int], float]  # by test and size: GB/s, or us


def perftest(server: Guest, client: Guest, name: str, size: int) -> float:
    """One figure: GB/s, or half a round trip in microseconds."""
    program, column, unit = PERFTEST[name]
    count = max(min(MAX_BYTES // size, 1000), 6)
    argv = [program, "-d", "rxe0", "-x", GID_INDEX, "-s", str(size), "-n", str(count), "-F"]
    serving = server.start(["stdbuf", "-oL", *argv])
    serving.wait_for("Waiting for client", 60)
    result = client.run([*argv, server.address], 180).check()
    serving.wait(60).check()
    for line in result.stdout.splitlines():
        words = line.split()
        if words and words[0] == str(size):
            return float(words[column]) * unit
    raise ValueError(f"{program} printed no row for {size} bytes:\n{result.stdout}")


def measured(guests: list[Guest], command: Sequence[str], options: Sequence[str]) -> list[Any]:
    """What a benchmark prints as JSON between the guests, measured from the last one."""
    second, first = guests
    hosts = ["--hosts", ",".join(f"{guest.address}:{PORT}" for guest in (first, second))]
    agent = second.start([PYTHON, "-m", "bench", "edges", *hosts, "--role", "1"])
    words = [str(PYTHON), "-m", *command, *hosts, *options, "--json"]
    found = json.loads(first.run(words, 1800).check().stdout)
    agent.wait(60).check()
    results: list[Any] = found["results"]
    return results


def fabric(guests: list[Guest]) -> tuple[Figures, str]:
    """The same figures of ours, and the route; the latency is that of a notification, if any."""
    options = ["--fabric", "verbs", "--sizes", ",".join(map(str, SIZES)), "--iterations", "200"]
    options += ["--rounds", "1", "--most", str(MAX_BYTES)]
    (result,) = measured(guests, ["bench", "fabric"], options)
    figures = {}
    for row in result["rows"]:
        test = row["test"].replace("notify_lat", "write_lat")  # after those of writes
        if test in PERFTEST:
            figures[test, row["bytes"]] = row["gbps"] or row["us"]["p50"]
    return figures, result["routes"][0]["reason"]


def edges(guests: list[Guest], sizes: Sequence[int], repeat: int) -> Result:
    """The result of bench.edges between the guests."""
    options = ["--sizes", ",".join(map(str, sizes)), "--repeat", str(repeat)]
    options += ["--hops", str(EDGE_HOPS), "--no-references"]
    (result,) = measured(guests, ["bench.edges"], options)
    return Result.from_dict(result)


def verbs(where: Where, rounds: int, repeat: int, with_edges: bool) -> Iterator[Result]:
    """Bandwidth and latency beside perftest's, and time per edge beside gRPC's."""
    try:
        with booted(2) as guests:
            yield _beside_perftest(where, guests, rounds)
            if with_edges:
                yield edges(guests, EDGE_SIZES, repeat)
    except UnavailableError as error:
        raise RuntimeError(f"cannot start the emulated hosts: {error}") from None


def _beside_perftest(where: Where, guests: list[Guest], rounds: int) -> Result:
    second, first = guests
    taken: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    route = ""
    for _ in where.bar.track(range(rounds), "round"):
        for size in SIZES:
            for test in PERFTEST:
                taken["perftest", test, size].append(perftest(second, first, test, size))
        figures, route = fabric(guests)
        for (test, size), figure in figures.items():
            taken["verbs", test, size].append(figure)
    result = Result("verbs", f"verbs, {route}; latency: half of a round trip", {}, "gbps")
    result.options["rounds"], result.against = rounds, "perftest"
    for (system, test, size), samples in taken.items():
        figure = statistics.median(samples)
        other = statistics.median(taken["perftest", test, size])
        row = Row(test, size_name(size), size, system, rounds)
        latency = test.endswith("lat")
        row = replace(row, times=Times(figure)) if latency else replace(row, gbps=figure)
        ratio = (other / figure if latency else figure / other) if system == "verbs" else None
        result.rows.append(replace(row, ratio=ratio))
    result.notes.append("The ratio is to perftest's ib_write_bw, ib_read_bw and ib_write_lat.")
    return result


@performed(here)
def main(
    rounds: Annotated[
        int, typer.Option(help="Run this many rounds of perftest and of the fabric.", min=1)
    ] = 3,
    repeat: Annotated[
        int, typer.Option(help="Measure each edge this many times.", min=MIN_SAMPLES)
    ] = 7,
    with_edges: Annotated[
        bool, typer.Option("--edges/--no-edges", help="Measure TensorFlow's edges too.")
    ] = True,
) -> Measure:
    """Print bandwidth and latency beside perftest's, and time per edge beside gRPC's."""
    return lambda where: verbs(where, rounds, repeat, with_edges)


if __name__ == "__main__":
    run_command(main)
