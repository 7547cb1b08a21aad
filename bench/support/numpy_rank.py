"""One rank of ``bench.numpy_collectives``: times collectives and messages of NumPy arrays.

Runs as a script, because mpi4py may be in another interpreter. Rank 0 prints one line of JSON.

usage: numpy_rank.py rdma|registered|mpi OPS SIZES ITERATIONS
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

WARM_UP = 5
IN_FLIGHT = 64  # messages


class OverRdma:
    """The calls over ``rdma_transport.collectives``; `registered`: of arrays that it allocated."""

    def __init__(self, registered: bool) -> None:
        from rdma_transport.collectives import Communicator, wait_all

        self.comm = Communicator.connect()
        self.rank, self.size = self.comm.rank, self.comm.size
        self.barrier = self.comm.barrier
        self.make = self.comm.empty if registered else np.empty
        self.send, self.recv = self.comm.send, self.comm.recv
        self.isend, self.irecv = self.comm.start_send, self.comm.start_recv
        self.wait = wait_all

    def call(self, op: str, mine: Any, whole: Any) -> Callable[[], Any]:
        """Return the function to time."""
        comm = self.comm
        calls: dict[str, Callable[[], Any]] = {
            "all_reduce": lambda: comm.all_reduce(mine, out=mine),
            "iall_reduce": lambda: comm.start_all_reduce(mine, out=mine).wait,
            "reduce_scatter": lambda: comm.reduce_scatter(whole, out=mine),
            "all_gather": lambda: comm.all_gather(mine, out=whole),
            "broadcast": lambda: comm.broadcast(mine),
            "all_to_all": lambda: comm.all_to_all(whole, out=whole),
            "barrier": comm.barrier,
        }
        return calls.get(op) or message_call(self, op, mine)


class OverMpi:
    """The calls over mpi4py."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self.mpi, self.comm = MPI, MPI.COMM_WORLD
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        self.barrier = self.comm.Barrier
        self.make = np.empty
        self.send, self.recv = self.comm.Send, self.comm.Recv
        self.isend, self.irecv = self.comm.Isend, self.comm.Irecv
        self.wait = MPI.Request.Waitall

    def call(self, op: str, mine: Any, whole: Any) -> Callable[[], Any]:
        """Return the function to time."""
        comm, in_place = self.comm, self.mpi.IN_PLACE
        calls: dict[str, Callable[[], Any]] = {
            "all_reduce": lambda: comm.Allreduce(in_place, mine),
            "iall_reduce": lambda: comm.Iallreduce(in_place, mine).Wait,
            "reduce_scatter": lambda: comm.Reduce_scatter_block(whole, mine),
            "all_gather": lambda: comm.Allgather(mine, whole),
            "broadcast": lambda: comm.Bcast(mine),
            "all_to_all": lambda: comm.Alltoall(in_place, whole),
            "barrier": comm.Barrier,
        }
        return calls.get(op) or message_call(self, op, mine)


def message_call(system: "OverRdma | OverMpi", op: str, mine: Any) -> Callable[[], Any]:
    """Return the function that exchanges messages between ranks 0 and 1, in place."""

    def round_trip() -> None:
        if system.rank == 0:
            system.send(mine, 1)
            system.recv(mine, 1)
        elif system.rank == 1:
            system.recv(mine, 0)
            system.send(mine, 0)

    def in_flight() -> None:
        if system.rank == 0:
            system.wait([system.isend(mine, 1) for _ in range(IN_FLIGHT)])
            system.recv(mine[:1], 1)
        elif system.rank == 1:
            system.wait([system.irecv(mine, 0) for _ in range(IN_FLIGHT)])
            system.send(mine[:1], 0)

    return {"round_trip": round_trip, "in_flight": in_flight}[op]


def keep_to_one(system: OverRdma | OverMpi, allowed: list[int], op: str) -> None:
    """Keep this thread on a processor of its own, if there are as many as ranks.

    A non-blocking collective may use any: it shall progress beside a computation.
    """
    bound = len(allowed) >= system.size and op != "iall_reduce"
    os.sched_setaffinity(0, {allowed[system.rank]} if bound else allowed)


def fill(op: str, system: OverRdma | OverMpi, mine: Any, whole: Any) -> Any:
    """Set the inputs, small integers; return the array of the result, and what it must be."""
    ranks = np.arange(1, system.size + 1, dtype=np.float32)
    mine[:], whole[:] = ranks[system.rank], ranks[system.rank]
    expected = {
        "all_reduce": (mine, ranks.sum()),
        "iall_reduce": (mine, ranks.sum()),
        "reduce_scatter": (mine, ranks.sum()),
        "all_gather": (whole, ranks[:, None]),
        "broadcast": (mine, ranks[0]),
        "all_to_all": (whole, ranks[:, None]),
        "barrier": (mine, ranks[system.rank]),
        "round_trip": (mine, ranks[0 if system.rank < 2 else system.rank]),
        "in_flight": (mine, ranks[0 if system.rank < 2 else system.rank]),
    }
    return expected[op]


def timed(system: OverRdma | OverMpi, call: Callable[[], Any], count: int) -> list[float]:
    """Return the microseconds of each of `count` calls, each from the end of a barrier."""
    samples = []
    for _ in range(count):
        system.barrier()
        start = time.perf_counter()
        call()
        samples.append((time.perf_counter() - start) * 1e6)
    return samples


def waiting(start: Callable[[], Any]) -> Callable[[], Any]:
    """Return a call that starts a collective, and waits for it."""
    return lambda: start()()


def computation(size: int, us: float) -> Callable[[], None]:
    """Return a computation of about this time; a pause if ranks have no core besides.

    A pause stands for the computation of an accelerator, which leaves the core.
    """
    if len(os.sched_getaffinity(0)) < 2 * size:
        return lambda: time.sleep(us / 1e6)
    values = np.linspace(0, 1, 2000)
    start = time.perf_counter()
    for _ in range(200):
        np.sin(values)
    often = max(1, round(us / ((time.perf_counter() - start) * 1e6 / 200)))

    def compute() -> None:
        for _ in range(often):
            np.sin(values)

    return compute


def overlap(system: OverRdma | OverMpi, start: Callable[[], Any], us: list[float]) -> float:
    """Return the percentage of a collective's time, `us`, that a computation hides, as OSU does."""
    pure = statistics.median(us)
    compute = computation(system.size, pure)

    def both() -> None:
        wait = start()
        compute()
        wait()

    alone = statistics.median(timed(system, compute, len(us)))
    together = statistics.median(timed(system, both, len(us)))
    return 100 * min(max(1 - (together - alone) / pure, 0), 1)


def main(name: str, ops: str, sizes: str, iterations: int) -> None:
    """Time each collective with each size, in bytes of one rank's array."""
    allowed = sorted(os.sched_getaffinity(0))
    system = OverMpi() if name == "mpi" else OverRdma(name == "registered")
    rows: list[dict[str, Any]] = []
    for op in ops.split(","):
        keep_to_one(system, allowed, op)
        for size in map(int, sizes.split(",")) if op != "barrier" else [0]:
            count = max(size // 4, 1)
            mine = system.make(count, np.float32)
            whole = system.make((system.size, count), np.float32)
            start = system.call(op, mine, whole)
            call = waiting(start) if op == "iall_reduce" else start
            result, expected = fill(op, system, mine, whole)
            call()
            wrong = int((result != expected).sum())
            mine[:], whole[:] = 0, 0
            for _ in range(WARM_UP):
                call()
            moved = size * (IN_FLIGHT if op == "in_flight" else 1)
            often = max(10, min(iterations, (1 << 28) // max(moved, 1)))
            us = timed(system, call, often)
            row = {"op": op, "bytes": size, "wrong": wrong, "us": us}
            if op == "iall_reduce":
                row["overlap"] = overlap(system, start, us)
            rows.append(row)
    system.barrier()
    if system.rank == 0:
        print(json.dumps(rows), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
