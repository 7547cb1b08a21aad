"""A process that serves datasets: a tf.data service dispatcher, workers, or both.

usage: python -m bench.support.data_service WORKERS PORT [DISPATCHER]

Without DISPATCHER it runs one; PORT is of the first worker, 0: any. Says the dispatcher's address
in a line of JSON, then answers each line it reads with what its transport did; ends with its input.
"""

import json
import sys
from typing import Any

from . import python
from .child import Child

START_SECONDS = 60.0


class DataService(Child):
    """Such a process; `dispatcher` is "host:port"."""

    def __init__(
        self,
        workers: int,
        dispatcher: str = "",
        environment: dict[str, str] | None = None,
        port: int = 0,
    ) -> None:
        arguments = [str(workers), str(port), *([dispatcher] if dispatcher else [])]
        super().__init__(
            "the data service",
            [*python.module("support.data_service"), *arguments],
            environment,
            timeout=20,
        )

    def wait_ready(self) -> "DataService":
        """Wait until it serves."""
        self.dispatcher: str = self.read(START_SECONDS)["dispatcher"]
        return self

    def stats(self) -> dict[str, Any]:
        """What `rdma_transport.stats()` says there."""
        self.tell("stats")
        stats: dict[str, Any] = self.read()
        return stats

    def kill(self) -> None:
        """Kill it and wait for its end."""
        self.process.kill()
        self.process.wait()


def main() -> None:
    """Run the servers until standard input ends."""
    import ctypes
    import signal

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive the parent
    count, port, *given = sys.argv[1:]
    import tensorflow as tf

    service = tf.data.experimental.service
    kept: list[Any] = []
    if not given:
        kept.append(service.DispatchServer())
        given = [kept[0].target.split("://")[1]]
    for i in range(int(count)):
        config = service.WorkerConfig(
            given[0],
            port=int(port) + i if int(port) else 0,
            worker_address=f"localhost:{int(port) + i}" if int(port) else None,
            data_transfer_protocol="rdma",
            heartbeat_interval_ms=100,
        )
        kept.append(service.WorkerServer(config))
    print(json.dumps({"dispatcher": given[0]}), flush=True)
    import rdma_transport

    for _ in sys.stdin:
        print(json.dumps(rdma_transport.stats()), flush=True)


if __name__ == "__main__":
    main()
