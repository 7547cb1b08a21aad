"""Horovod's interface for Keras: ``horovod.tensorflow.keras`` and ``horovod.keras``."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdma_transport.horovod import (
    Adasum,
    Average,
    Compression,
    Max,
    Min,
    ProcessSet,
    Product,
    Sum,
    add_process_set,
    allgather_object,
    broadcast_object,
    broadcast_variables,
    global_process_set,
    keras_models,
    operations,
    optimizers,
    remove_process_set,
)
from rdma_transport.horovod import basics as _basics
from rdma_transport.horovod import broadcast_global_variables as _broadcast_global_variables
from rdma_transport.horovod.basics import *  # noqa: F403
from rdma_transport.horovod.functions import value_of
from rdma_transport.horovod.keras import callbacks as callbacks
from rdma_transport.horovod.keras import elastic as elastic
from rdma_transport.horovod.sync_batch_norm import SyncBatchNormalization
from rdma_transport.horovod.unsupported import attributes_of

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "global_process_set",
    "load_model",
    "reducescatter",
    "remove_process_set",
]
__all__ += _basics.__all__
__getattr__ = attributes_of("horovod.tensorflow.keras")
keras_models.follow()  # models may have training steps of their own


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Make an optimizer of Keras reduce gradients over the ranks; return it."""
    return optimizers.DistributedOptimizer(
        optimizer,
        name,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


def PartialDistributedOptimizer(
    optimizer: Any, *args: Any, local_layers: Any = None, **options: Any
) -> Any:
    """Do ``DistributedOptimizer()``, and leave the variables of `local_layers` to this rank."""
    made = DistributedOptimizer(optimizer, *args, **options)
    return optimizers.with_local_layers(made, local_layers)


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Load a model whose optimizer was distributed, or not; it is distributed then.

    `custom_optimizers`: classes that Keras does not know.
    """
    return keras_models.load_model(
        tf.keras,
        lambda optimizer: DistributedOptimizer(optimizer, compression=compression),
        filepath,
        custom_optimizers,
        custom_objects,
    )


def broadcast_global_variables(root_rank: int) -> Any:
    """Overwrite all global variables of the version 1 graph by those of rank `root_rank`."""
    return value_of(_broadcast_global_variables(root_rank))


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Any = None,
    compression: Any = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Combine a value with those of the other ranks."""
    return value_of(
        operations.allreduce(
            _tensor(value),
            average,
            name=name,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            op=op,
            compression=compression,
            process_set=process_set,
        )
    )


def _tensor(value: Any) -> Any:
    return value if isinstance(value, tf.IndexedSlices) else tf.convert_to_tensor(value)


def allgather(
    value: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Concatenate the values of all ranks along the first dimension."""
    return value_of(operations.allgather(_tensor(value), name, process_set=process_set))


def broadcast(
    value: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the value of rank `root_rank`."""
    return value_of(operations.broadcast(_tensor(value), root_rank, name, process_set=process_set))


def reducescatter(
    value: Any,
    name: str | None = None,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Combine a value with those of the other ranks; return this rank's part of its rows."""
    return value_of(
        operations.reducescatter(_tensor(value), op=op, name=name, process_set=process_set)
    )
