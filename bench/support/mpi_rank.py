"""One of two ranks of ``bench.support.mpi``: runs the tests that it is told, as OSU's do.

Runs as a script, under mpirun. The latency is half of a round trip of `Send` and `Recv`. For the
bandwidth, 64 messages are in flight, and then acknowledged.

usage: mpi_rank.py PORT
"""

import json
import socket
import sys
import time
from typing import Any

import numpy as np
from mpi4py import MPI

IN_FLIGHT = 64


def latency(comm: Any, block: Any, count: int) -> dict[str, Any]:
    """Return microseconds, on rank 0."""
    samples = []
    for number in range(count + count // 4 + 1):
        start = time.perf_counter()
        if comm.Get_rank() == 0:
            comm.Send(block, 1)
            comm.Recv(block, 1)
        else:
            comm.Recv(block, 0)
            comm.Send(block, 0)
        if number > count // 4:  # after the warm-up
            samples.append((time.perf_counter() - start) * 1e6 / 2)
    return {"us": samples}


def stream(comm: Any, block: Any, count: int) -> float:
    """Return the seconds that `count` messages from rank 0 to rank 1 take."""
    note = np.zeros(1, np.uint8)
    start = time.perf_counter()
    while count > 0:
        window = range(min(count, IN_FLIGHT))
        if comm.Get_rank() == 0:
            MPI.Request.Waitall([comm.Isend(block, 1) for _ in window])
            comm.Recv(note, 1)
        else:
            MPI.Request.Waitall([comm.Irecv(block, 0) for _ in window])
            comm.Send(note, 0)
        count -= len(window)
    return time.perf_counter() - start


def bandwidth(comm: Any, block: Any, count: int) -> dict[str, Any]:
    """Return the seconds, after a warm-up."""
    stream(comm, block, count // 4 + 1)
    return {"seconds": stream(comm, block, count)}


def main(port: str) -> None:
    """Answer until the connection ends."""
    comm = MPI.COMM_WORLD
    with socket.create_connection(("127.0.0.1", int(port))) as connection:
        lines = connection.makefile("rw")

        def tell(**message: Any) -> None:
            lines.write(json.dumps(message) + "\n")
            lines.flush()

        library = MPI.Get_library_version().split(",")[0].splitlines()[0].strip("\0 ")
        tell(rank=comm.Get_rank(), library=library)
        for line in lines:
            wish = json.loads(line)
            block = np.zeros(wish["bytes"], np.uint8)
            tests = {"write_lat": latency, "write_bw": bandwidth}
            tell(**tests[wish["test"]](comm, block, wish["iterations"]))


if __name__ == "__main__":
    main(sys.argv[1])
