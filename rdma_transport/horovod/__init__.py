"""Horovod's interface for TensorFlow, implemented from its documentation.

Programs that ``rdma-transport run --horovod`` starts import it as ``horovod.tensorflow``. Others
import it by its own name::

    import rdma_transport.horovod as hvd

    hvd.init()
    ...
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.001 * hvd.size()))

It works with eager code, ``tf.function``, version 1 graphs, Keras 3 and tf-keras. What Horovod has
and this has not raises ``NotImplementedError`` when it is used. ``rdma_transport.horovod.keras`` is
``horovod.tensorflow.keras``.
"""

from rdma_transport.horovod import basics as _basics
from rdma_transport.horovod import elastic as elastic
from rdma_transport.horovod.basics import *  # noqa: F403
from rdma_transport.horovod.compression import Compression
from rdma_transport.horovod.functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from rdma_transport.horovod.operations import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    reducescatter,
    size_op,
)
from rdma_transport.horovod.optimizers import DistributedOptimizer, PartialDistributedOptimizer
from rdma_transport.horovod.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from rdma_transport.horovod.tape import DistributedGradientTape, PartialDistributedGradientTape
from rdma_transport.horovod.unsupported import attributes_of

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",  # noqa: F405, made by __getattr__
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "size_op",
]
__all__ += _basics.__all__
_missing = attributes_of("horovod.tensorflow")


def __getattr__(name: str) -> object:
    if name == "SyncBatchNormalization":  # importing Keras takes long
        from rdma_transport.horovod.sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    return _missing(name)
