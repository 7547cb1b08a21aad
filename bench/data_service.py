"""Measures the throughput of tf.data service from a worker process, over gRPC and over rdma.

The worker repeats an element that is in its memory, so only the transfer to the reader is measured.
Both protocols take turns in one run, with the same worker and without compression.

usage: python -m bench.data_service [--sizes 4096,1048576] [--repeat 9] [--json FILE]
"""

import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from .support.data_service import DataService
from .support.exit import run_command
from .support.machine import describe
from .support.options import JsonFile, Repeat, Sizes, save
from .support.sizes import parse_sizes, size_name
from .support.timing import Summary, plain, ratio, summarize

SIZES = "4096,65536,1048576,16777216"
PROTOCOLS = ("grpc", "rdma")
TURN_SECONDS = 0.4
WARM_UP = 5


def reader(served: DataService, protocol: str, size: int) -> Iterator[Any]:
    """An endless iterator over elements of `size` bytes."""
    import tensorflow as tf

    service = tf.data.experimental.service
    dataset = tf.data.Dataset.from_tensors(tf.zeros([size], tf.uint8)).repeat()
    return iter(
        dataset.apply(
            service.distribute(
                processing_mode=service.ShardingPolicy.OFF,
                service=f"grpc://{served.dispatcher}",
                data_transfer_protocol=protocol,
                compression=None,
            )
        )
    )


def seconds_of(elements: Iterator[Any], count: int) -> float:
    """Seconds per element."""
    start = time.perf_counter()
    for _ in range(count):
        next(elements)
    return (time.perf_counter() - start) / count


def measure(sizes: list[int], repeat: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows in microseconds per element, and what the worker's transport counted."""
    rows = []
    served = DataService(1).wait_ready()
    try:
        for size in track(sizes, "measuring"):
            times: dict[str, list[float]] = {protocol: [] for protocol in PROTOCOLS}
            for _ in range(repeat):
                # Made anew for each turn: a reader reads ahead while another one is measured.
                for protocol in PROTOCOLS:
                    elements = reader(served, protocol, size)
                    warm = seconds_of(elements, WARM_UP)
                    warm = min(warm, seconds_of(elements, WARM_UP))
                    count = max(10, min(1000, int(TURN_SECONDS / warm)))
                    times[protocol].append(1e6 * seconds_of(elements, count))
                    del elements
            row: dict[str, Any] = {"bytes": size}
            rows.append(row | {protocol: summarize(times[protocol]) for protocol in PROTOCOLS})
        return rows, served.stats()["data_service"]
    finally:
        served.end()


def show(rows: list[dict[str, Any]], repeat: int) -> Table:
    """Return a table of the rows of so many repetitions."""
    table = Table(title=f"time per element, us, median of {repeat}")
    for heading in ("size", "gRPC", "(min, p90)", "MiB/s", "rdma", "(min, p90)", "MiB/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("gRPC/rdma", justify="right", no_wrap=True)

    def cells(value: Summary, size: int) -> list[str]:
        rate = size / 2**20 / (value.median / 1e6)
        return [f"{value.median:.0f}", f"({value.minimum:.0f}, {value.p90:.0f})", f"{rate:.0f}"]

    for row in rows:
        grpc, rdma = row["grpc"], row["rdma"]
        both = [*cells(grpc, row["bytes"]), *cells(rdma, row["bytes"])]
        table.add_row(size_name(row["bytes"]), *both, ratio(grpc, rdma))
    return table


def main(
    sizes: Sizes = SIZES,
    repeat: Repeat = 9,
    json_file: JsonFile = None,
) -> None:
    """Print the time per element of gRPC and of rdma."""
    rows, counted = measure(parse_sizes(sizes), repeat)
    console = Console()
    console.width = max(console.width, 100)
    console.print(describe())
    console.print(f"sent by the worker over rdma: {counted['sent']}")
    console.print(show(rows, repeat))
    save(json_file, {"repeat": repeat, "sent_by_rdma": counted["sent"], "rows": plain(rows)})


if __name__ == "__main__":
    run_command(main)
