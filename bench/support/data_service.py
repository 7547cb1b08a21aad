"""A process that serves datasets: a tf.data service dispatcher, workers, or both.

usage: python -m bench.support.data_service WORKERS PORT [DISPATCHER]

Without DISPATCHER it runs one; PORT is of the first worker, 0: any. Says the dispatcher's address
in a line of JSON, then answers each line it reads with what its transport did; ends with its input.
"""

import json
import select
import sys
import tempfile
from typing import Any

from bench.support.python import start

START_SECONDS = 60.0


class DataService:
    """Such a process; `dispatcher` is "host:port"."""

    def __init__(
        self,
        workers: int,
        dispatcher: str = "",
        environment: dict[str, str] | None = None,
        port: int = 0,
    ) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        arguments = [str(workers), str(port), *([dispatcher] if dispatcher else [])]
        self.process = start(
            ["-m", "bench.support.data_service", *arguments], environment, self.log
        )

    def wait_ready(self) -> "DataService":
        self.dispatcher: str = self._read(START_SECONDS)["dispatcher"]
        return self

    def stats(self) -> dict[str, Any]:
        """What `rdma_transport.stats()` says there."""
        assert self.process.stdin is not None
        self.process.stdin.write("stats\n")
        self.process.stdin.flush()
        return self._read(20)

    def _read(self, seconds: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        ready = select.select([self.process.stdout], [], [], seconds)[0]
        line = self.process.stdout.readline() if ready else ""
        if not line:
            raise RuntimeError(f"the data service does not answer\n{self.logged()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def logged(self) -> str:
        with open(f"/proc/self/fd/{self.log.fileno()}") as again:
            return again.read()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout, self.log):
            if pipe is not None:
                pipe.close()


def main() -> None:
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
