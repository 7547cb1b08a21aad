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

usage: python -m bench.accelerators [--sizes 4,12000000] [--device GPU] [--json]
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rdma_transport.command_line import NOT_AVAILABLE, fail

from .alternation import Alternation
from .options import both, performed
from .remote_session import SESSION_TASK, remote
from .report import Result, Row, times_of
from .support.cluster import Cluster
from .support.counters import sent_since
from .support.exit import run_command
from .support.options import Repeat, Sizes
from .support.sizes import parse_sizes, size_name
from .support.turns import in_turns
from .where import BOTH, JOBS, Measure, Where, clusters

SIZES = "4,65536,1048576,12000000"
CROSSINGS = 4
MANY = 12
COPIES = 2 * CROSSINGS
ALONE = "copies"
LONG = {protocol: f"{protocol}_many" for protocol in BOTH}
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
) -> dict[str, Alternation]:
    """Few and many crossings over each protocol, and the copies alone."""
    here, there = (f"/job:{job}/task:0/device:{device}:0" for job in JOBS)
    processor = f"/job:{JOBS[0]}/task:0/cpu:0"

    def alternation(protocol: str, devices: tuple[str, str], hops: int) -> Alternation:
        task = clusters[protocol][JOBS[0], 0]
        return remote(Alternation, stack, task, processor, devices, hops, size)

    opened = {}
    for protocol in clusters:
        opened[protocol] = alternation(protocol, (here, there), CROSSINGS)
        opened[LONG[protocol]] = alternation(protocol, (here, there), MANY)
    return opened | {ALONE: alternation("rdma", (here, processor), COPIES)}


def accelerators(where: Where, device: str, sizes: list[int], repeat: int) -> Result:
    """Rows of a step, of its copies alone, and of each crossing; 1 is wrong if results differ.

    The copies are made by TensorFlow in the tasks over rdma.
    """
    title = f"a step with {CROSSINGS} crossings between two {device}s"
    options = {"device": device, "repeat": repeat}
    result = Result("accelerators", title, options, "p50", unit="ms")
    environments = {protocol: environment(device, protocol) for protocol in BOTH}
    jobs = dict.fromkeys(JOBS, 1)
    with clusters(where, jobs, {JOBS[0]: SESSION_TASK}, environments) as made:
        for size in where.bar.track(sizes, "measuring crossings"):
            result.rows += _rows(made, device, size, repeat)
        result.add_traffic(made)
    result.notes.append(
        "copies: the same ones by TensorFlow within a task. each: one crossing more."
    )
    result.compare()
    return result


def _rows(made: dict[str, Cluster], device: str, size: int, repeat: int) -> Iterator[Row]:
    with ExitStack() as sessions:
        ways = _opened(sessions, made, device, size)
        digests = {name: ways[name].digest() for name in BOTH}
        before = made["rdma"].counted()
        turns = {name: way.milliseconds for name, way in ways.items()}
        times = {
            name: [1e3 * each for each in taken] for name, taken in in_turns(turns, repeat).items()
        }
        sent = sent_since(before, made["rdma"].counted())
    named = size_name(size), size
    for name in BOTH:
        wrong = int(digests[name] != digests["grpc"])
        row = Row("step", *named, name, repeat, times_of(times[name]), wrong=wrong)
        yield replace(row, sent=sent if name == "rdma" else None)
    yield Row("copies", *named, "local", repeat, times_of(times[ALONE]))
    for name in BOTH:
        pairs = zip(times[name], times[LONG[name]], strict=True)
        each = [(long - short) / (MANY - CROSSINGS) for short, long in pairs]
        yield Row("each", *named, name, repeat, times_of(each))


@performed(both)
def main(
    sizes: Sizes = SIZES,
    repeat: Repeat = 9,
    device: Annotated[
        str, typer.Option(help="Use accelerators of this type, such as GPU.")
    ] = PRETEND,
) -> Measure:
    """Measure steps whose tensors go from accelerator to accelerator, beside gRPC."""
    wanted = parse_sizes(sizes)
    return lambda where: accelerators(where, device, wanted, repeat)


if __name__ == "__main__":
    run_command(main)
