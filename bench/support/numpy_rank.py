"""One rank of ``bench.numpy_collectives``: times collectives of NumPy arrays.

Runs as a script, because mpi4py may be in another interpreter. Rank 0 prints one line of JSON.

usage: numpy_rank.py rdma|registered|mpi OPS SIZES ITERATIONS
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

WARM_UP = 5


class OverRdma:
    """The calls over ``rdma_transport.collectives``; `registered`: of arrays that it allocated."""

    def __init__(self, registered: bool) -> None:
        from rdma_transport.collectives import Communicator

        self.comm = Communicator.connect()
        self.rank, self.size = self.comm.rank, self.comm.size
        self.barrier = self.comm.barrier
        self.make = self.comm.empty if registered else np.empty

    def call(self, op: str, mine: Any, whole: Any) -> Callable[[], Any]:
        """Return the function to time."""
        comm = self.comm
        calls: dict[str, Callable[[], Any]] = {
            "all_reduce": lambda: comm.all_reduce(mine, out=mine),
            "reduce_scatter": lambda: comm.reduce_scatter(whole, out=mine),
            "all_gather": lambda: comm.all_gather(mine, out=whole),
            "broadcast": lambda: comm.broadcast(mine),
            "all_to_all": lambda: comm.all_to_all(whole, out=whole),
            "barrier": comm.barrier,
        }
        return calls[op]


class OverMpi:
    """The calls over mpi4py."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self.mpi, self.comm = MPI, MPI.COMM_WORLD
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        self.barrier = self.comm.Barrier
        self.make = np.empty

    def call(self, op: str, mine: Any, whole: Any) -> Callable[[], Any]:
        """Return the function to time."""
        comm, in_place = self.comm, self.mpi.IN_PLACE
        calls: dict[str, Callable[[], Any]] = {
            "all_reduce": lambda: comm.Allreduce(in_place, mine),
            "reduce_scatter": lambda: comm.Reduce_scatter_block(whole, mine),
            "all_gather": lambda: comm.Allgather(mine, whole),
            "broadcast": lambda: comm.Bcast(mine),
            "all_to_all": lambda: comm.Alltoall(in_place, whole),
            "barrier": comm.Barrier,
        }
        return calls[op]


def fill(op: str, system: OverRdma | OverMpi, mine: Any, whole: Any) -> Any:
    """Set the inputs, small integers; return the array of the result, and what it must be."""
    ranks = np.arange(1, system.size + 1, dtype=np.float32)
    mine[:], whole[:] = ranks[system.rank], ranks[system.rank]
    expected = {
        "all_reduce": (mine, ranks.sum()),
        "reduce_scatter": (mine, ranks.sum()),
        "all_gather": (whole, ranks[:, None]),
        "broadcast": (mine, ranks[0]),
        "all_to_all": (whole, ranks[:, None]),
        "barrier": (mine, ranks[system.rank]),
    }
    return expected[op]


def main(name: str, ops: str, sizes: str, iterations: int) -> None:
    """Time each collective with each size, in bytes of one rank's array."""
    system = OverMpi() if name == "mpi" else OverRdma(name == "registered")
    rows = []
    for op in ops.split(","):
        for size in map(int, sizes.split(",")) if op != "barrier" else [0]:
            count = max(size // 4, 1)
            mine = system.make(count, np.float32)
            whole = system.make((system.size, count), np.float32)
            call = system.call(op, mine, whole)
            result, expected = fill(op, system, mine, whole)
            call()
            wrong = int((result != expected).sum())
            mine[:], whole[:] = 0, 0
            for _ in range(WARM_UP):
                call()
            samples = []
            for _ in range(max(10, min(iterations, (1 << 28) // max(size, 1)))):
                system.barrier()
                start = time.perf_counter()
                call()
                samples.append((time.perf_counter() - start) * 1e6)
            rows.append({"op": op, "bytes": size, "us": samples, "wrong": wrong})
    system.barrier()
    if system.rank == 0:
        print(json.dumps(rows), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
