"""Measures the cost of each peer for a server: descriptors, threads and mapped memory.

One task exchanges tensors with 1, 2, 4, ... others. RDMA_TRANSPORT_FABRIC sets the fabric.

usage: python -m bench.peers [PEERS]
"""

import functools
import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from .options import both, performed
from .report import Result, Row
from .support.cluster import Task
from .support.exit import run_command
from .where import Measure, Where, clusters

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


def measure(where: Where, most: int) -> Result:
    """Rows before and after a task connects to 1, 2, 4 … peers; it holds little else."""
    title = "resources of a server, before and after it connects to its peers"
    result = Result("peers", title, {"most": most}, "p50")
    for power in range(most.bit_length()):
        peers = 2**power
        with clusters(where, {"a": 1, "b": peers}) as made:
            import tensorflow as tf

            from .support.session import config, opened

            cluster = made["rdma"]
            task = cluster["a", 0]
            before = held(task)
            with tf.Graph().as_default() as graph:
                step = exchange(peers)
            with opened(cluster.target("a"), graph, config()) as session:
                for _ in range(STEPS):
                    session.run(step)
                after = held(task)
                result.add_traffic(made)
        for when, found in (("before", before), ("after", after)):
            row = Row(when, f"{peers} peers", 0, "rdma", STEPS)
            row.more.update(found)
            result.rows.append(row)
    return result


@performed(functools.partial(both, protocols=("rdma",)))
def main(
    most: Annotated[
        int, typer.Argument(metavar="PEERS", min=1, help="Measure up to this many peers.")
    ] = 8,
) -> Measure:
    """Print the resources of a server before and after it connects to its peers."""
    return lambda where: measure(where, most)


if __name__ == "__main__":
    run_command(main)
