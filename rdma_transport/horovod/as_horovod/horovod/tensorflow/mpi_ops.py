"""``horovod.tensorflow.mpi_ops``."""

from collections.abc import Sequence
from typing import Any

from rdma_transport.horovod import basics as _ours
from rdma_transport.horovod.basics import *  # noqa: F403
from rdma_transport.horovod.operations import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_reducescatter,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    reducescatter,
    size_op,
)
from rdma_transport.horovod.operations import allreduce as _average
from rdma_transport.horovod.operations import grouped_allreduce as _grouped_average
from rdma_transport.horovod.process_sets import (
    ProcessSet,
    add_process_set,
    get_process_set_ids_and_ranks,
    global_process_set,
    remove_process_set,
)

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "_allreduce",
    "_basics",
    "_grouped_allreduce",
    "add_process_set",
    "allgather",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "global_process_set",
    "grouped_allgather",
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
__all__ += _ours.__all__


class _Basics:
    """The functions of ``rdma_transport.horovod.basics`` as methods."""

    _get_process_set_ids_and_ranks = staticmethod(get_process_set_ids_and_ranks)

    def __getattr__(self, name: str) -> Any:
        return getattr(_ours, name)


_basics = _Basics()


def _allreduce(tensor: Any, name: str | None = None, op: Any = Sum, **options: Any) -> Any:
    """Do ``allreduce()``, by default the sum."""
    return _average(tensor, name=name, op=op, **options)


def _grouped_allreduce(
    tensors: Sequence[Any], name: str | None = None, op: Any = Sum, **options: Any
) -> Any:
    """Do ``grouped_allreduce()``, by default the sum."""
    return _grouped_average(tensors, name=name, op=op, **options)
