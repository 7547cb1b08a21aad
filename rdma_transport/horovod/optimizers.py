"""Optimizers whose gradients are those of all ranks."""

from typing import Any

import tensorflow as tf

from rdma_transport.horovod import keras_optimizer
from rdma_transport.horovod.compression import Compression
from rdma_transport.horovod.operations import Average
from rdma_transport.horovod.process_sets import ProcessSet, global_process_set
from rdma_transport.horovod.reduction import Reduction, local_variables_of
from rdma_transport.horovod.session_optimizer import DistributedSessionOptimizer


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Make an optimizer reduce gradients over the ranks before it applies them; return it.

    It is one of Keras 3, tf-keras, or ``tf.compat.v1.train``, of which a new one is returned.
    """
    reduction = Reduction(
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        num_groups=num_groups,
        groups=groups,
    )
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return DistributedSessionOptimizer(optimizer, reduction, name, use_locking)
    if keras_optimizer.is_keras_optimizer(optimizer):
        return keras_optimizer.distribute(optimizer, reduction, name)
    raise ValueError(
        f"DistributedOptimizer() takes an optimizer of Keras or tf.compat.v1.train, not "
        f"{optimizer!r}. To reduce gradients of others, use DistributedGradientTape"
    )


def PartialDistributedOptimizer(
    optimizer: Any, *args: Any, local_layers: Any = None, **options: Any
) -> Any:
    """Do ``DistributedOptimizer()``, and leave the variables of `local_layers` to this rank."""
    return with_local_layers(DistributedOptimizer(optimizer, *args, **options), local_layers)


def with_local_layers(optimizer: Any, layers: Any) -> Any:
    """Let a distributed optimizer leave the variables of `layers` to this rank; return it."""
    for variable in local_variables_of(layers):
        optimizer.register_local_var(variable)
    return optimizer
