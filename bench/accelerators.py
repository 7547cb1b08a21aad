"""Measures steps whose tensors go from accelerator to accelerator of two tasks, beside gRPC.

A step negates a tensor on the accelerators of both tasks in turns, so that it crosses four times.
Each crossing copies it out of one accelerator and into the other. The session runs in the process
of the first task, as in a training script. "Each" is what one crossing more takes, from steps with
twelve: without the start and the end of a step. A step on the first task alone, between its
accelerator and its processor, has TensorFlow make the same copies and sends nothing. All steps take
turns in one run. In each turn a step warms up, and four are measured. The results are compared bit
for bit.

Without hardware, a pretend accelerator stands in (`tests/native/pretend_accelerator/control.h`):
its copies and kernels are the processor's, as late as a DMA engine of 5 GB/s would make them.
Build it first: `make test-native`. TensorFlow 2.21 receives wrong values over gRPC there unless the
device runs everything in one order, so the tasks over gRPC do.

usage: python -m bench.accelerators [--sizes 4,12000000] [--device GPU] [--json FILE]
"""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from rdma_transport.command_line import NOT_AVAILABLE, fail

from .alternation import RemoteAlternation
from .remote_session import SESSION_TASK
from .support.cluster import Cluster
from .support.counters import sent_since
from .support.exit import run_command
from .support.machine import describe
from .support.options import JsonFile, Repeat, Sizes, save
from .support.sizes import parse_sizes, size_name
from .support.timing import plain, ratio, summarize
from .support.turns import rounds

SIZES = "4,65536,1048576,12000000"
CROSSINGS = 4
MANY = 12
COPIES = 2 * CROSSINGS
JOBS = ("a", "b")
PROTOCOLS = ("grpc", "rdma")
ALONE = "copies"
LONG = {protocol: f"{protocol}_many" for protocol in PROTOCOLS}
EACH = {protocol: f"{protocol}_each" for protocol in PROTOCOLS}
PRETEND = "PRETEND"
LIBRARY = Path(__file__).parents[1] / "build/debug/tests/native/pretend_accelerator"
DMA_ENGINE = "mib_us=200"  # 5 GB/s


def environment(device: str, protocol: str) -> dict[str, str]:
    """What the tasks need to have the device."""
    if device != PRETEND:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
        # The tasks may share a GPU, and the first one would take all of its memory.
        return {"CUDA_VISIBLE_DEVICES": visible, "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    library = LIBRARY / "libpretend_accelerator.so"
    if not library.exists():
        fail(f"there is no {library.name}: build it with `make test-native`", NOT_AVAILABLE)
    order = "in_order=1" if protocol == "grpc" else ""
    return {
        "TF_PLUGGABLE_DEVICE_LIBRARY_PATH": str(library),
        "PRETEND_ACCELERATOR": f"{DMA_ENGINE} {order}",
    }


def _opened(
    stack: ExitStack, clusters: dict[str, Cluster], device: str, size: int
) -> dict[str, RemoteAlternation]:
    """Few and many crossings over each protocol, and the copies alone."""
    here, there = (f"/job:{job}/task:0/device:{device}:0" for job in JOBS)
    processor = f"/job:{JOBS[0]}/task:0/cpu:0"

    def alternation(protocol: str, devices: tuple[str, str], hops: int) -> RemoteAlternation:
        task = clusters[protocol][JOBS[0], 0]
        return RemoteAlternation(stack, task, processor, devices, hops, size)

    opened = {}
    for protocol in clusters:
        opened[protocol] = alternation(protocol, (here, there), CROSSINGS)
        opened[LONG[protocol]] = alternation(protocol, (here, there), MANY)
    return opened | {ALONE: alternation("rdma", (here, processor), COPIES)}


def measure(device: str, sizes: list[int], repeat: int) -> list[dict[str, Any]]:
    """Rows in milliseconds per step; "grpc_each" and "rdma_each" per crossing.

    "copies" are those of a step alone, made by TensorFlow in the tasks over rdma. `wrong` is 1
    if their results differ.
    """
    rows = []
    with ExitStack() as stack:
        clusters = {
            protocol: stack.enter_context(
                Cluster(
                    dict.fromkeys(JOBS, 1),
                    protocol,
                    environment(device, protocol),
                    programs={JOBS[0]: SESSION_TASK},
                )
            )
            for protocol in PROTOCOLS
        }
        for size in track(sizes, "measuring crossings"):
            with ExitStack() as sessions:
                ways = _opened(sessions, clusters, device, size)
                digests = {ways[name].digest() for name in PROTOCOLS}
                before = clusters["rdma"].counted()
                times: dict[str, list[float]] = {name: [] for name in ways}
                for name in rounds(ways, repeat):
                    times[name].append(ways[name].milliseconds())
                for name in PROTOCOLS:
                    pairs = zip(times[name], times[LONG[name]], strict=True)
                    times[EACH[name]] = [
                        (long - short) / (MANY - CROSSINGS) for short, long in pairs
                    ]
                rows.append(
                    {
                        "bytes": size,
                        "wrong": len(digests) - 1,
                        "sent": sent_since(before, clusters["rdma"].counted()),
                        **{name: summarize(samples) for name, samples in times.items()},
                    }
                )
    return rows


def show(rows: list[dict[str, Any]], device: str, console: Console) -> None:
    """Print the times of both protocols and their ratio."""
    title = f"a step with {CROSSINGS} crossings between two {device}s, ms, medians"
    table = Table(title=title)
    headings = ("size", "gRPC", "rdma", "ratio", "copies alone")
    for heading in (*headings, "each, gRPC", "each, rdma", "ratio", "by gRPC", "wrong"):
        table.add_column(heading, justify="right")
    for row in rows:
        by_grpc = row["sent"]["grpc"]["tensors"]
        table.add_row(
            size_name(row["bytes"]),
            *(f"{row[name].median:.2f}" for name in PROTOCOLS),
            ratio(row["grpc"], row["rdma"]),
            f"{row[ALONE].median:.2f}",
            *(f"{row[EACH[name]].median:.3f}" for name in PROTOCOLS),
            ratio(row[EACH["grpc"]], row[EACH["rdma"]]),
            str(by_grpc),
            str(row["wrong"]),
        )
    console.print(table)


def main(
    sizes: Sizes = SIZES,
    repeat: Repeat = 9,
    device: Annotated[
        str, typer.Option(help="Use accelerators of this type, such as GPU.")
    ] = PRETEND,
    json_file: JsonFile = None,
) -> None:
    """Measure steps whose tensors go from accelerator to accelerator, beside gRPC."""
    console = Console()
    rows = measure(device, parse_sizes(sizes), repeat)
    console.print(describe())
    show(rows, device, console)
    save(json_file, {"device": device, "rows": plain(rows)})
    if any(row["wrong"] for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    run_command(main)
