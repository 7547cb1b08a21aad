"""Measures the cost of each peer for a server: descriptors, threads and mapped memory.

One task exchanges tensors with 1, 2, 4, ... others. RDMA_TRANSPORT_FABRIC sets the fabric.

usage: python -m bench.peers [PEERS]
"""

import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from .support.cluster import Cluster, Task
from .support.exit import run_command
from .support.machine import describe

STEPS = 5
MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) .*/memfd:rdma_transport")


def held(task: Task) -> dict[str, float]:
    """Return the resources that the process holds now."""
    process = Path(f"/proc/{task.pid}")
    lines = (process / "maps").read_text().splitlines()
    mapped = sum(int(m[2], 16) - int(m[1], 16) for line in lines if (m := MAPPING.match(line)))
    names = [(thread / "comm").read_text() for thread in (process / "task").iterdir()]
    return {
        "descriptors": len(os.listdir(process / "fd")),
        "threads": sum(name.startswith("rdma_") for name in names),
        "mapped, MiB": mapped / 2**20,
    }


def exchange(peers: int) -> Any:
    """Build a graph in which task a sends a tensor to each b and receives one back."""
    import tensorflow as tf

    back = []
    with tf.device("/job:a/task:0"):
        value = tf.random.uniform([64, 64])
    for peer in range(peers):
        with tf.device(f"/job:b/task:{peer}"):
            sent = tf.negative(value)
        with tf.device("/job:a/task:0"):
            back.append(tf.reduce_sum(sent))
    return tf.group(back)


def measure(peers: int) -> tuple[set[str], dict[str, float], dict[str, float]]:
    """Return the transports to the peers, and the task's resources before and after connecting."""
    import tensorflow as tf

    from .support.session import config, opened

    with Cluster({"a": 1, "b": peers}, "rdma") as cluster:
        task = cluster["a", 0]
        before = held(task)
        with tf.Graph().as_default() as graph:
            step = exchange(peers)
        with opened(cluster.target("a"), graph, config()) as session:
            for _ in range(STEPS):
                session.run(step)
            transports = {peer["transport"] for peer in task.stats()["peers"]}
            return transports, before, held(task)


def main(
    most: Annotated[
        int, typer.Argument(metavar="PEERS", min=1, help="Measure up to this many peers.")
    ] = 8,
) -> None:
    """Print the resources of a server before and after it connects to its peers."""
    table = Table(title="resources of a server, before and after it connects to its peers")
    rows = []
    peers = 1
    while peers <= most:
        rows.append((peers, *measure(peers)))
        peers *= 2
    for heading in ("peers", "transport", *rows[0][2]):
        table.add_column(heading, justify="right")
    for peers, transports, before, after in rows:
        cells = (f"{before[what]:.4g} → {after[what]:.4g}" for what in before)
        table.add_row(str(peers), ", ".join(sorted(transports)), *cells)
    console = Console()
    console.print(describe(), highlight=False)
    console.print(table)


if __name__ == "__main__":
    run_command(main)
