"""Measures the throughput of tf.data service from a worker process, over gRPC and over rdma.

The worker repeats an element that is in its memory, so only the transfer to the reader is measured.
Both protocols take turns in one run, with the same worker and without compression.

usage: python -m bench.data_service [--sizes 4096,1048576] [--repeat 9] [--json]
"""

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from .options import both, performed
from .report import Result, Row, times_of
from .support.data_service import DataService
from .support.exit import run_command
from .support.options import Repeat, Sizes
from .support.sizes import parse_sizes, size_name
from .support.tf_import import import_tensorflow
from .support.turns import in_turns
from .where import Measure, Where

SIZES = "4096,65536,1048576,16777216"
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


def turn(served: DataService, protocol: str, size: int) -> float:
    """Microseconds per element of a new reader: one reads ahead while another one is measured."""
    elements = reader(served, protocol, size)
    warm = min(seconds_of(elements, WARM_UP) for _ in range(2))
    return 1e6 * seconds_of(elements, max(10, min(1000, int(TURN_SECONDS / warm))))


def data_service(where: Where, sizes: list[int], repeat: int) -> Result:
    """Rows of elements, by protocol."""
    where.bar.at(0, "importing TensorFlow")
    import_tensorflow()
    result = Result("data-service", "time per element", {"repeat": repeat}, "p50")
    served = DataService(1).wait_ready()
    try:
        for size in where.bar.track(sizes, "measuring"):
            turns = {name: partial(turn, served, name, size) for name in where.protocols}
            for protocol, samples in in_turns(turns, repeat).items():
                times = times_of(samples)
                row = Row("element", size_name(size), size, protocol, repeat, times)
                result.rows.append(row)
                row.more["MiB/s"] = round(size / 2**20 / (times.p50 / 1e6))
        sent = served.stats()["data_service"]["sent"]
    finally:
        served.end()
    result.notes.append(f"sent by the worker over rdma: {sent}")
    result.compare()
    return result


@performed(both)
def main(sizes: Sizes = SIZES, repeat: Repeat = 9) -> Measure:
    """Print the time per element of gRPC and of rdma."""
    wanted = parse_sizes(sizes)
    return lambda where: data_service(where, wanted, repeat)


if __name__ == "__main__":
    run_command(main)
