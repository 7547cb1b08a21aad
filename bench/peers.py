"""What each peer costs a server: descriptors, threads, and memory of the transport that is mapped.

One task exchanges tensors with 1, 2, 4... others. The fabric is what RDMA_TRANSPORT_FABRIC says.

usage: python -m bench.peers [PEERS]     8 at most, by default
"""

import os
import re
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.support.cluster import Task, running
from bench.support.ending import leave
from bench.support.machine import describe

STEPS = 5
MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) .*/memfd:rdma_transport")


def held(task: Task) -> dict[str, float]:
    """What the process holds now."""
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
    """A graph in which task a sends a tensor to each b, and gets one back."""
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
    """The paths to the peers, and what the task held before it met them and after."""
    import tensorflow as tf

    from bench.support.session import config, opened

    with running({"a": 1, "b": peers}, "rdma") as cluster:
        task = cluster["a", 0]
        before = held(task)
        with tf.Graph().as_default() as graph:
            step = exchange(peers)
        with opened(cluster.target("a"), graph, config()) as session:
            for _ in range(STEPS):
                session.run(step)
            paths = {peer["path"] for peer in task.stats()["peers"]}
            return paths, before, held(task)


def main() -> None:
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    table = Table(title="what a server holds, with none of its peers met and with all")
    rows = []
    peers = 1
    while peers <= most:
        rows.append((peers, *measure(peers)))
        peers *= 2
    for heading in ("peers", "path", *rows[0][2]):
        table.add_column(heading, justify="right")
    for peers, paths, before, after in rows:
        cells = (f"{before[what]:.4g} → {after[what]:.4g}" for what in before)
        table.add_row(str(peers), ", ".join(sorted(paths)), *cells)
    console = Console()
    console.print(describe(), highlight=False)
    console.print(table)


if __name__ == "__main__":
    leave(main)
