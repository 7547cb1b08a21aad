"""Measures the verbs fabric on Soft-RoCE between two emulated hosts, beside perftest and gRPC.

The fabric and perftest take turns, and so do TensorFlow's edges over the fabric and over gRPC, all
on the same link in one boot. The hosts are emulated on this machine's processors, so only
comparisons inside one run are meaningful: a card is a hundred times faster.

usage: python -m bench.verbs [--rounds 3] [--json FILE]
"""

import json
import statistics
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from rdma_transport.command_line import FAILED, fail
from tools.guest.guest import PYTHON, Guest
from tools.guest.machine import booted
from tools.guest.packages import UnavailableError

from .support.exit import run_command
from .support.machine import describe
from .support.options import JsonFile, save
from .support.sizes import size_name

SIZES = [64, 4096, 65536, 1048576, 4194304]
EDGE_SIZES = [4096, 8192, 16384, 65536, 262144, 1048576]
EDGE_HOPS = 16  # 48, as on one host, take too long here
MAX_BYTES = 24 << 20  # that one bandwidth moves
PORT = 7100
GID_INDEX = "1"  # of a guest's IPv4 address
# perftest's program, its column of interest, and what one unit of it is in ours.
PERFTEST = {
    "write_gbps": ("ib_write_bw", 3, 2**20 / 1e9),
    "read_gbps": ("ib_read_bw", 3, 2**20 / 1e9),
    "latency_us": ("ib_write_lat", 4, 1.0),
}

Figures = dict[int, dict[str, float]]


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


def fabric(server: Guest, client: Guest) -> tuple[Figures, str]:
    """The same figures of ours, and the route."""
    program = [str(PYTHON), "-m", "bench.fabric"]
    place = f"{server.address}:{PORT}"
    serving = server.start([*program, "--listen", place])
    sizes = ",".join(map(str, SIZES))
    options = ["--fabric", "verbs", "--sizes", sizes, "--iterations", "200", "--rounds", "1"]
    options += ["--most", str(MAX_BYTES), "--json"]
    result = client.run([*program, "--connect", place, *options], 400).check()
    serving.wait(30)
    report = json.loads(result.stdout)
    figures = {}
    for row in report["rows"]:
        latency = row.get("notify_us") or row["write_us"]
        figures[row["bytes"]] = {
            "write_gbps": row["write_gbps"],
            "read_gbps": row["read_gbps"],
            "latency_us": latency["p50"],
        }
    return figures, report["route"]


def edges(guests: list[Guest], sizes: Sequence[int], repeat: int) -> dict[str, Any]:
    """The results of bench.edges between the guests."""
    second, first = guests
    hosts = ",".join(f"{guest.address}:{PORT}" for guest in (first, second))
    file = first.share / "edges.json"
    agent = second.start([PYTHON, "-m", "bench", "edges", "--hosts", hosts, "--role", "1"])
    options = ["--hosts", hosts, "--sizes", ",".join(map(str, sizes)), "--repeat", str(repeat)]
    options += ["--hops", str(EDGE_HOPS), "--no-references", "--json", str(file)]
    first.run([PYTHON, "-m", "bench.edges", *options], 1800).check()
    agent.wait(60).check()
    report: dict[str, Any] = json.loads(file.read_text())
    return report


def show_fabric(console: Console, ours: list[Figures], theirs: list[Figures], route: str) -> None:
    """Print the fabric's figures beside perftest's."""
    table = Table(title=f"fabric, {route}; medians of {len(ours)}; latency: half of a round trip")
    for heading in ("size", "write\nMB/s", "ib_write_bw\nMB/s", "\nratio", "read\nMB/s"):
        table.add_column(heading, justify="right")
    for heading in ("ib_read_bw\nMB/s", "\nratio", "latency\nus", "ib_write_lat\nus", "\nratio"):
        table.add_column(heading, justify="right")
    for size in SIZES:
        cells = []
        for name, scale in (("write_gbps", 1e3), ("read_gbps", 1e3), ("latency_us", 1.0)):
            mine, other = (
                statistics.median(f[size][name] for f in side) for side in (ours, theirs)
            )
            cells += [f"{mine * scale:.4g}", f"{other * scale:.4g}", f"{mine / other:.2f}"]
        table.add_row(size_name(size), *cells)
    console.print(table)


def show_edges(console: Console, report: dict[str, Any]) -> None:
    """Print what an edge adds, over gRPC, and over rdma with and without static placement."""
    table = Table(title="TensorFlow, us that an edge adds, medians")
    for heading in ("size", "gRPC", "static", "dynamic", "gRPC / static", "dynamic / static"):
        table.add_column(heading, justify="right")
    table.add_column("wrong", justify="right")
    for row in report["rows"]:
        grpc, static, dynamic = (row[way]["median"] for way in ("grpc", "rdma", "dynamic"))
        cells = [f"{time:.0f}" for time in (grpc, static, dynamic)]
        cells += [f"{slow / static:.2f}" for slow in (grpc, dynamic)]
        table.add_row(size_name(row["bytes"]), *cells, str(row["wrong"]))
    console.print(table)


def main(
    rounds: Annotated[
        int, typer.Option(help="Run this many rounds of perftest and of the fabric.", min=1)
    ] = 3,
    repeat: Annotated[int, typer.Option(help="Measure each edge this many times.", min=6)] = 7,
    with_edges: Annotated[
        bool, typer.Option("--edges/--no-edges", help="Measure TensorFlow's edges too.")
    ] = True,
    json_file: JsonFile = None,
) -> None:
    """Print bandwidth and latency beside perftest's, and time per edge beside gRPC's."""
    ours: list[Figures] = []
    theirs: list[Figures] = []
    try:
        with booted(2) as guests, Progress(transient=True) as progress:
            task = progress.add_task(
                "measuring", total=rounds * (len(SIZES) * len(PERFTEST) + 5) + 60
            )
            second, first = guests
            for _ in range(rounds):
                figures: Figures = {}
                for size in SIZES:
                    figures[size] = {}
                    for name in PERFTEST:
                        figures[size][name] = perftest(second, first, name, size)
                        progress.advance(task)
                theirs.append(figures)
                mine, route = fabric(second, first)
                ours.append(mine)
                progress.advance(task, 5)
            report = edges(guests, EDGE_SIZES, repeat) if with_edges else {}
    except UnavailableError as error:
        fail(f"cannot start the emulated hosts: {error}", FAILED)
    console = Console()
    console.width = max(console.width, 110)
    console.print(f"two emulated hosts with Soft-RoCE on {describe()}", highlight=False)
    show_fabric(console, ours, theirs, route)
    if report:
        show_edges(console, report)
    save(json_file, {"ours": ours, "perftest": theirs, "edges": report})


if __name__ == "__main__":
    run_command(main)
