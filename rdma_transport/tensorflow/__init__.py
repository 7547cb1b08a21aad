"""Collectives as TensorFlow operations.

They work in eager code, in ``tf.function`` and in graphs of version 1, with any Keras, and need no
server, strategy or cluster. Start the processes with ``rdma-transport run -n 2 -- python
script.py``::

    import rdma_transport.tensorflow as rt

    world = rt.connect()
    ...
    gradients = rt.grouped_all_reduce(gradients, "average")

Ranks match calls by name, not by order: TensorFlow runs independent operations in any order.
Without a name, a call in a graph has the name of its node, which is the same on all ranks if they
build the same graph; calls of eager code have one name for each kind, so give names if several
threads call at once.

Contributions are combined in the order of ranks: results have the same bits on all ranks and in all
runs. Operations are ``"sum"``, ``"average"``, ``"min"``, ``"max"`` and ``"product"``. Gradients
exist for all but min, max, product, ``barrier()`` and ``join()``.

Errors are those of TensorFlow: ``FailedPreconditionError`` if ranks differ in what they call under
a name, ``UnavailableError`` with the rank if one is lost, ``DeadlineExceededError`` after
``RDMA_TRANSPORT_STALL_TIMEOUT``, ``CancelledError``. XLA cannot compile the operations.

Import this before the first operation of TensorFlow: its CPU device then allocates large tensors in
memory that the other ranks of the host read where it lies. Otherwise they are copied.
"""

import contextlib

from rdma_transport.tensorflow import gradients as _gradients
from rdma_transport.tensorflow import library as _library
from rdma_transport.tensorflow.groups import Group, close, communicator, connect, new_group, world
from rdma_transport.tensorflow.operations import (
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    grouped_all_gather,
    grouped_all_reduce,
    grouped_reduce_scatter,
    join,
    reduce_scatter,
)
from rdma_transport.tensorflow.parallel import parallel

__all__ = [
    "Group",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "close",
    "communicator",
    "connect",
    "grouped_all_gather",
    "grouped_all_reduce",
    "grouped_reduce_scatter",
    "join",
    "new_group",
    "parallel",
    "reduce_scatter",
    "world",
]
_gradients.register()
with contextlib.suppress(RuntimeError):  # which connect() raises
    _library.operations()
