"""Measures the processor time and the memory of an idle server, over gRPC and over rdma.

usage: python -m bench.idle [SECONDS]
"""

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from .options import both, performed
from .report import Result, Row
from .support.cluster import Cluster, Task
from .support.exit import run_command
from .where import Measure, Where, clusters

JOBS = {"a": 1, "b": 1}


def cpu_seconds(task: Task) -> float:
    """Return the processor time of the process so far, user and system."""
    fields = Path(f"/proc/{task.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(task: Task) -> float:
    """Return the resident memory of the process in MiB."""
    pages = int(Path(f"/proc/{task.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def traffic(cluster: Cluster) -> None:
    """Run a few steps that send a tensor of 4 MiB back and forth."""
    import tensorflow as tf

    from .support.session import config, opened

    with tf.Graph().as_default() as graph:
        with tf.device("/job:a/task:0"):
            value = tf.random.uniform([2**20])
        for task in "bab":
            with tf.device(f"/job:{task}/task:0"):
                value = tf.negative(value)
    with opened(cluster.target("a"), graph, config()) as session:
        for _ in range(20):
            session.run(value.op)


def idle(where: Where, seconds: float) -> Result:
    """A row for each protocol: memory, and processor time before and after tensors were sent."""
    title = f"idle server (processor time in {seconds:g} s)"
    result = Result("idle", title, {"seconds": seconds}, "p50")
    with clusters(where, JOBS) as made:
        for protocol, cluster in made.items():
            task = cluster["a", 0]
            row = Row("idle", "server", 0, protocol, 1)
            row.more["resident, MiB"] = round(resident_mib(task))
            for when in ("before", "after"):
                if when == "after":
                    traffic(cluster)
                time.sleep(1)
                before = cpu_seconds(task)
                where.bar.at(0, f"{protocol}: idle, {when} traffic")
                time.sleep(seconds)
                row.more[f"CPU {when} traffic, s"] = round(cpu_seconds(task) - before, 2)
            result.rows.append(row)
    return result


@performed(both)
def main(
    seconds: Annotated[
        float, typer.Argument(min=0, help="Measure the processor time over this many seconds.")
    ] = 10,
) -> Measure:
    """Print the processor time and the memory of an idle server over both protocols."""
    return lambda where: idle(where, seconds)


if __name__ == "__main__":
    run_command(main)
