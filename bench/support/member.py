"""A task on a host of its own: one server for each protocol, each in a cluster of its own.

usage: python -m bench.support.member INDEX ADDRESS...     task INDEX, until it is killed
"""

import sys
import time
from typing import Any

FIRST_PORT = 7001
PROTOCOLS = ("grpc", "rdma")


def serve(index: int, addresses: list[str]) -> dict[str, Any]:
    """The servers of task `index` of job "worker", by protocol; `addresses` are all tasks'."""
    import tensorflow as tf

    return {
        protocol: tf.distribute.Server(
            {"worker": [f"{address}:{FIRST_PORT + i}" for address in addresses]},
            job_name="worker",
            task_index=index,
            protocol=protocol,
        )
        for i, protocol in enumerate(PROTOCOLS)
    }


if __name__ == "__main__":
    kept = serve(int(sys.argv[1]), sys.argv[2:])
    print("ready", flush=True)
    time.sleep(3600)
