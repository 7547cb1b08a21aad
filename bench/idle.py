"""Measures the processor time and the memory of an idle server, over gRPC and over rdma.

usage: python -m bench.idle [SECONDS]
"""

import os
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from .support.cluster import Cluster, Task
from .support.exit import run_command
from .support.machine import describe


def cpu_seconds(task: Task) -> float:
    """Return the processor time of the process so far, user and system."""
    fields = Path(f"/proc/{task.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(task: Task) -> float:
    """Return the resident memory of the process in MiB."""
    for line in Path(f"/proc/{task.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def traffic(cluster: Cluster) -> None:
    """Run a few steps that send a tensor of 4 MiB back and forth."""
    import tensorflow as tf

    from .support.session import config, v1

    with tf.Graph().as_default() as graph:
        with tf.device("/job:a/task:0"):
            value = tf.random.uniform([2**20])
        for task in "bab":
            with tf.device(f"/job:{task}/task:0"):
                value = tf.negative(value)
        with v1.Session(cluster.target("a"), graph=graph, config=config()) as session:
            for _ in range(20):
                session.run(value.op)


def main(
    seconds: Annotated[
        float, typer.Argument(min=0, help="Measure the processor time over this many seconds.")
    ] = 10,
) -> None:
    """Print the processor time and the memory of an idle server over both protocols."""
    import tensorflow as tf

    tf.compat.v1.disable_eager_execution()
    table = Table(title=f"idle server (processor time in {seconds:g} s)")
    for heading in ("", "resident, MiB", "CPU before traffic, s", "CPU after traffic, s"):
        table.add_column(heading, justify="right")
    for protocol in ("grpc", "rdma"):
        with Cluster({"a": 1, "b": 1}, protocol) as cluster:
            task = cluster["a", 0]
            resident = resident_mib(task)
            used = []
            for busy_before in (False, True):
                if busy_before:
                    traffic(cluster)
                time.sleep(1)
                before = cpu_seconds(task)
                time.sleep(seconds)
                used.append(cpu_seconds(task) - before)
            table.add_row(protocol, f"{resident:.0f}", *(f"{value:.2f}" for value in used))
    console = Console()
    console.print(describe())
    console.print(table)


if __name__ == "__main__":
    run_command(main)
