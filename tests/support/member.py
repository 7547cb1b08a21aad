"""Runs a task on its own host: one server per protocol, each in its own cluster.

usage: python -m tests.support.member INDEX ADDRESS...     runs task INDEX until it is killed
"""

import time
from typing import Annotated, Any

import typer

FIRST_PORT = 7001
PROTOCOLS = ("grpc", "rdma")


def serve(index: int, addresses: list[str]) -> dict[str, Any]:
    """Start the servers of task `index` of job "worker"; `addresses` are those of all tasks."""
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


def main(
    index: Annotated[int, typer.Argument(min=0, help="Run the task with this index.")],
    addresses: Annotated[list[str], typer.Argument(help="Set the addresses of all tasks.")],
) -> None:
    """Run one task of a cluster until it is killed."""
    kept = serve(index, addresses)  # noqa: F841
    print("ready", flush=True)
    time.sleep(3600)


if __name__ == "__main__":
    from bench.support.exit import run_command

    run_command(main)
