"""Gradient tapes whose gradients are those of all ranks."""

import functools
from typing import Any

import tensorflow as tf

from rdma_transport.horovod import keras_models
from rdma_transport.horovod.compression import Compression
from rdma_transport.horovod.operations import Average
from rdma_transport.horovod.process_sets import ProcessSet, global_process_set
from rdma_transport.horovod.reduction import Locals, Reduction, local_variables_of


class _Distributed:
    """What a distributed tape has in addition to its class. Its state is that of the tape."""

    __slots__ = ()

    def register_local_source(self, source: Any) -> None:
        """Leave the gradient of a variable to this rank."""
        self._local.add(source)  # type: ignore[attr-defined]

    def gradient(self, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the gradients of the tape, reduced over the ranks."""
        found = super().gradient(target, sources, *args, **kwargs)  # type: ignore[misc]
        flat = _flat(sources)
        return _like(sources, self._reduction(_flat(found), flat, self._local))  # type: ignore[attr-defined]

    def get_local_and_global_gradients(
        self, target: Any, sources: Any, *args: Any, **kwargs: Any
    ) -> tuple[list[Any], list[Any]]:
        """Return pairs of variable and gradient: those of this rank, and the reduced ones."""
        pairs = list(
            zip(_flat(sources), _flat(self.gradient(target, sources, *args, **kwargs)), strict=True)
        )
        local = self._local  # type: ignore[attr-defined]
        return (
            [pair for pair in pairs if pair[0] in local],
            [pair for pair in pairs if pair[0] not in local],
        )


def _flat(structure: Any) -> list[Any]:
    found: list[Any] = []
    tf.nest.map_structure(found.append, structure)
    return found


def _like(structure: Any, values: list[Any]) -> Any:
    found = iter(values)
    return tf.nest.map_structure(lambda _: next(found), structure)


@functools.cache
def _class_of(base: type) -> type:
    return type(
        f"Distributed{base.__name__}", (_Distributed, base), {"__slots__": ("_local", "_reduction")}
    )


def _distributed(tape: Any, reduction: Reduction) -> Any:
    """Return a tape that shares the state of `tape`, which stays as it is."""
    if isinstance(tape, _Distributed):
        raise ValueError("this tape is distributed already")
    keras_models.follow()
    kind: type = type(tape)
    made: Any = object.__new__(_class_of(kind))
    made.__dict__ = tape.__dict__
    made._reduction, made._local = reduction, Locals()
    return made


def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a tape like `gradtape`, whose ``gradient()`` is reduced over the ranks.

    Small gradients are reduced together; `num_groups` and `groups` change nothing about that.
    """
    reduction = Reduction(
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    return _distributed(gradtape, reduction)


def PartialDistributedGradientTape(
    gradtape: Any, *args: Any, local_layers: Any = None, **options: Any
) -> Any:
    """Return such a tape that leaves the variables of `local_layers` to this rank."""
    made = DistributedGradientTape(gradtape, *args, **options)
    for variable in local_variables_of(local_layers):
        made.register_local_source(variable)
    return made
