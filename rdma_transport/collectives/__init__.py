"""Collectives for NumPy, as fast as MPI on one host, without TensorFlow.

Ranks of one host use shared memory, those of others verbs or libfabric.

Start the processes with ``rdma-transport run -n 2 -- python script.py``::

    from rdma_transport.collectives import Communicator

    with Communicator.connect() as world:
        gradients = world.empty(1 << 20, np.float32)  # registered: no copy on one host
        ...
        world.all_reduce(gradients, out=gradients)  # the sum over all ranks, in place

All ranks of a communicator must call the same collectives in the same order. Contributions are
combined in the order of ranks, so results have the same bits on all ranks and in all runs. If
several hosts have equally many ranks, two at least, reductions to more than 128 KiB combine on each
host first, and then in the order of hosts.

Errors are those of ``rdma_transport.fabric``. A ``FabricValueError`` concerns one call, and is
raised on every rank: sizes, types, operations or collectives differ, or one rank passed an invalid
array. After any other error, such as the death of a rank, the communicator cannot be used further;
the message names the rank.

All calls are thread-safe, and release the interpreter lock. Ctrl-C interrupts them.
"""

from rdma_transport._collectives import MessageTruncatedError
from rdma_transport.collectives.communicator import Communicator
from rdma_transport.collectives.membership import others_wait
from rdma_transport.collectives.ranks import Ranks, find_ranks
from rdma_transport.collectives.requests import Request, wait_all

ANY = -1
"""Any source, or any tag, of a message."""

__all__ = [
    "ANY",
    "Communicator",
    "MessageTruncatedError",
    "Ranks",
    "Request",
    "find_ranks",
    "others_wait",
    "wait_all",
]
