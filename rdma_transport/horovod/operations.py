"""Collectives of tensors, in eager code, functions and version 1 graphs."""

import enum
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

import rdma_transport.tensorflow as rt
from rdma_transport.collectives.membership import is_elastic
from rdma_transport.horovod import basics, process_sets
from rdma_transport.horovod.compression import Compression
from rdma_transport.horovod.process_sets import ProcessSet, global_process_set, group_of
from rdma_transport.tensorflow.operations import place_in


class ReduceOp(enum.IntEnum):
    """How elements of several ranks are combined."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5


Average, Sum, Adasum = ReduceOp.Average, ReduceOp.Sum, ReduceOp.Adasum
Min, Max, Product = ReduceOp.Min, ReduceOp.Max, ReduceOp.Product


def chosen_op(op: Any, average: bool | None = None) -> ReduceOp:
    """Return the operation; `average` is its older form. Adasum is refused."""
    if average is not None:
        if op is not None:
            raise ValueError("give either op or average, which is its older form")
        op = Average if average else Sum
    found = Average if op is None else ReduceOp(op)
    if found == Adasum:
        raise NotImplementedError("Adasum is not offered: use op=hvd.Average or op=hvd.Sum")
    return found


def _name(kind: str, name: str | None) -> str | None:
    """Return the name by which ranks find each other; in graphs, that of a node, made unique."""
    return f"{kind}.{name}" if name and tf.executing_eagerly() else name


def _check_sparse(op: ReduceOp, prescale: float, postscale: float) -> None:
    if op not in (Average, Sum):
        raise NotImplementedError(
            f"{op.name} of tf.IndexedSlices is not offered: Average and Sum are"
        )
    if prescale != 1.0 or postscale != 1.0:
        raise NotImplementedError("factors for tf.IndexedSlices are not offered: scale the values")


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Combine a tensor, or ``tf.IndexedSlices``, with those of the other ranks.

    The default is the average. Devices are ignored: reductions take place on processors.
    """
    chosen = chosen_op(op, average)
    group = group_of(process_set)
    if isinstance(tensor, tf.IndexedSlices):
        _check_sparse(chosen, prescale_factor, postscale_factor)
        values, context = compression.compress(tensor.values)
        small = tf.IndexedSlices(values, tensor.indices, tensor.dense_shape)
        result = rt.all_reduce(
            small, chosen.name.lower(), name=_name("allreduce", name), group=group
        )
        return tf.IndexedSlices(
            compression.decompress(result.values, context), result.indices, result.dense_shape
        )
    small, context = compression.compress(tf.convert_to_tensor(tensor))
    result = rt.all_reduce(
        small,
        chosen.name.lower(),
        name=_name("allreduce", name),
        group=group,
        prescale=prescale_factor,
        postscale=postscale_factor,
    )
    return compression.decompress(result, context)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    name: str | None = None,
    ignore_name_scope: bool = False,
) -> list[Any]:
    """Do ``allreduce()`` of several tensors, those of one type together."""
    chosen = chosen_op(op, average)
    group = group_of(process_set)
    results: list[Any] = [None] * len(tensors)
    dense: list[int] = []
    for index, tensor in enumerate(tensors):
        if isinstance(tensor, tf.IndexedSlices):
            results[index] = allreduce(
                tensor,
                compression=compression,
                op=chosen,
                prescale_factor=prescale_factor,
                postscale_factor=postscale_factor,
                name=name and f"{name}/{index}",
                process_set=process_set,
            )
        else:
            dense.append(index)
    call = functools.partial(
        rt.grouped_all_reduce,
        op=chosen.name.lower(),
        group=group,
        prescale=prescale_factor,
        postscale=postscale_factor,
    )
    given = [tensors[index] for index in dense]
    reduced = _by_type(call, given, _name("grouped_allreduce", name), compression)
    for index, tensor in zip(dense, reduced, strict=True):
        results[index] = tensor
    return results


def _by_type(
    call: Callable[..., list[Any]],
    tensors: Sequence[Any],
    name: str | None,
    compression: Any = Compression.none,
) -> list[Any]:
    """Call something with the tensors of the first type, then of the second, and so on.

    They are compressed. `name` becomes that of several calls.
    """
    pairs = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
    places: dict[Any, list[int]] = {}
    for index, (tensor, _) in enumerate(pairs):
        places.setdefault(tensor.dtype, []).append(index)
    results: list[Any] = [None] * len(pairs)
    for number, part in enumerate(places.values()):
        found = call([pairs[index][0] for index in part], name=name and f"{name}/{number}")
        for index, result in zip(part, found, strict=True):
            results[index] = compression.decompress(result, pairs[index][1])
    return results


def _with_gradient(tensor: Any, group: rt.Group, *, times: bool = False) -> Any:
    """Return a tensor like this one, whose gradient is divided by the number of ranks, or `times`.

    To the operations below, the loss is the sum of those of the ranks; to Horovod, the gradient of
    what is gathered or broadcast is the mean of those of the ranks, and that of a part of a sum is
    as large as that of the whole sum.
    """
    found = tf.convert_to_tensor(tensor)
    if (group.size == 1 and not is_elastic()) or not found.dtype.is_floating:
        return found

    def scaled(gradient: Any) -> Any:
        size = tf.cast(place_in(group)[1], gradient.dtype)
        return gradient * size if times else gradient / size

    @tf.custom_gradient
    def same(value: Any) -> Any:
        return tf.identity(value), scaled

    return same(found)


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the tensors of all ranks, one after the other along the first dimension.

    Only the first dimension may differ.
    """
    group = group_of(process_set)
    given = _with_gradient(tensor, group)
    return rt.all_gather(given, name=_name("allgather", name), group=group)


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Do ``allgather()`` of several tensors."""
    group = group_of(process_set)
    values = [_with_gradient(tensor, group) for tensor in tensors]
    call = functools.partial(rt.grouped_all_gather, group=group)
    return _by_type(call, values, _name("grouped_allgather", name))


def root_of(root_rank: int, process_set: ProcessSet) -> int:
    """Return the rank within a set of a rank of the job."""
    ranks = process_set.ranks or []
    if root_rank not in ranks:
        raise tf.errors.InvalidArgumentError(
            None, None, f"the root is rank {root_rank}, which does not belong to {process_set}"
        )
    return ranks.index(root_rank)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the tensor of rank `root_rank` of the job."""
    group = group_of(process_set)
    return rt.broadcast(
        _with_gradient(tensor, group),
        root_of(root_rank, process_set),
        name=_name("broadcast", name),
        group=group,
    )


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Overwrite variables by those of rank `root_rank`; return their values."""
    results = []
    for index, variable in enumerate(map(variable_of, variables)):
        value = broadcast(
            variable, root_rank, name=name and f"{name}/{index}", process_set=process_set
        )
        if tf.executing_eagerly():
            variable.assign(value)
            results.append(variable.read_value())
        else:
            assigned = tf.compat.v1.assign(variable, value, validate_shape=True)
            with tf.control_dependencies([assigned]):
                results.append(tf.identity(value))
    return results


def variable_of(variable: Any) -> Any:
    """Return TensorFlow's variable of one of Keras 3, others as they are."""
    value = getattr(variable, "value", None)
    return variable if value is None or callable(value) else value


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send ``splits[i]`` rows to rank i, for all i; return the rows that the ranks send this one.

    Without `splits`, all get equally many. With them, return also how many came from each rank.
    """
    group = group_of(process_set)
    result, received = rt.all_to_all(
        tf.convert_to_tensor(tensor),
        None if splits is None else tf.cast(tf.convert_to_tensor(splits), tf.int32),
        name=_name("alltoall", name),
        group=group,
    )
    return result if splits is None else (result, received)


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: Any = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Combine a tensor with those of the other ranks; return this rank's part of its rows."""
    return grouped_reducescatter(
        [tensor],
        compression=compression,
        op=op,
        process_set=process_set,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
    )[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> list[Any]:
    """Do ``reducescatter()`` of several tensors."""
    chosen = chosen_op(op)
    if chosen not in (Average, Sum):
        raise NotImplementedError(f"reducescatter() with {chosen.name} is not offered: Sum is")
    if any(isinstance(tensor, tf.IndexedSlices) for tensor in tensors):
        raise NotImplementedError("reducescatter() of tf.IndexedSlices is not offered")
    group = group_of(process_set)
    values = [_with_gradient(tensor, group, times=True) for tensor in tensors]
    call = functools.partial(
        rt.grouped_reduce_scatter,
        op=chosen.name.lower(),
        group=group,
        prescale=prescale_factor,
        postscale=postscale_factor,
    )
    return _by_type(call, values, _name("reducescatter", name), compression)


def join(device: str = "") -> Any:
    """Take part in the reductions of the others with zeros until all have joined.

    Return the rank that joined last.
    """
    return rt.join(group=basics.world())


def barrier(process_set: ProcessSet = global_process_set, name: str | None = None) -> Any:
    """Wait for all ranks of the set."""
    return rt.barrier(name=_name("barrier", name), group=group_of(process_set))


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return the number of ranks of a process set as a tensor."""
    group = group_of(process_sets.find(process_set_id), required=False)
    return _number(place_in(group)[1], name)


def rank_op(name: str | None = None) -> Any:
    """Return ``rank()`` as a tensor."""
    return _number(place_in(basics.world())[0], name)


def local_rank_op(name: str | None = None) -> Any:
    """Return ``local_rank()`` as a tensor."""
    return _number(basics.local_rank(), name)


def local_size_op(name: str | None = None) -> Any:
    """Return ``local_size()`` as a tensor."""
    return _number(basics.local_size(), name)


def _number(value: Any, name: str | None) -> Any:
    return tf.identity(tf.convert_to_tensor(value, tf.int32), name=name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return 1 as a tensor if this process belongs to a process set, otherwise 0."""
    included = process_sets.find(process_set_id).included()
    return tf.constant(int(included), tf.int32, name=name)
