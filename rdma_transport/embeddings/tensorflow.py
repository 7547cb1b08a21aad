"""Lookups in tables of embeddings, and their gradients, as TensorFlow operations."""

from typing import Any

import tensorflow as tf

from rdma_transport.tensorflow.groups import communicator
from rdma_transport.tensorflow.library import operations
from rdma_transport.tensorflow.operations import all_to_all, barrier, refuse_xla

COMBINERS = ("sum", "mean", "sqrtn")


def lookup(
    table: Any, ids: Any, *, combiner: str | None = None, weights: Any = None, anchor: Any = None
) -> Any:
    """Return the rows of `ids`: a tensor of shape ``(*ids, dim)``.

    Ids are int32, int64 or uint64, in a tensor, ``tf.RaggedTensor`` or ``tf.SparseTensor``. With a
    `combiner`, ``"sum"``, ``"mean"`` or ``"sqrtn"``, the rows of the last dimension of ids become
    one, as in ``tf.nn.embedding_lookup_sparse()``; a list without ids becomes zeros. Sparse ids
    need one. `weights` are one for each id, and of the same structure.

    Gradients are applied by the operation that computes them: ``tape.gradient(loss, [...,
    table.anchor])`` updates the table on all ranks, and gives zero for the anchor. All ranks must
    then compute it. `anchor` replaces that variable.
    """
    place = table.anchor if anchor is None else anchor
    if combiner is None:
        if weights is not None or isinstance(ids, tf.SparseTensor):
            raise ValueError(f"table '{table.name}': weights and sparse ids need a combiner")
        if isinstance(ids, tf.RaggedTensor):
            return ids.with_flat_values(_rows(table, ids.flat_values, place))
        return _rows(table, tf.convert_to_tensor(ids), place)
    if combiner not in COMBINERS:
        raise ValueError(
            f"table '{table.name}': the combiner {combiner!r} is none of {', '.join(COMBINERS)}"
        )
    return _combined(table, ids, combiner, weights, place)


def apply_gradients(table: Any, ids: Any, gradients: Any) -> Any:
    """Update rows by their gradients, as ``Table.apply_gradients()``; return the operation.

    All ranks must do this. What they look up after the operation is updated.
    """
    _check(table)
    return _apply(table.number, table.name, table.dim, tf.convert_to_tensor(ids), gradients)


def _check(table: Any) -> None:
    if table.communicator is not communicator():
        raise ValueError(
            f"table '{table.name}' was made with a communicator of its own; for operations, import "
            "rdma_transport.tensorflow before, and make the table without one"
        )
    refuse_xla("lookup")


def _rows(table: Any, ids: Any, anchor: Any) -> Any:
    _check(table)
    if ids.dtype not in (tf.int32, tf.int64, tf.uint64):
        raise TypeError(
            f"table '{table.name}': ids are of {ids.dtype.name}; the types are int32, int64, uint64"
        )
    return operations().rdma_transport_embedding_lookup(
        ids, anchor, T=table.dtype.name, dim=table.dim, table=table.number, table_name=table.name
    )


def _combined(table: Any, ids: Any, combiner: str, weights: Any, anchor: Any) -> Any:
    if isinstance(ids, tf.SparseTensor):
        ids = tf.RaggedTensor.from_sparse(ids)
        weights = None if weights is None else tf.RaggedTensor.from_sparse(weights)
    if not isinstance(ids, tf.RaggedTensor):
        ids = tf.convert_to_tensor(ids)
        rows = _rows(table, ids, anchor)
        scale = None if weights is None else tf.cast(weights, rows.dtype)[..., tf.newaxis]
        of_all = tf.ones_like(rows[..., :1]) if scale is None else scale
        total = tf.reduce_sum(rows if scale is None else rows * scale, -2)
        return _divided(total, tf.reduce_sum(of_all, -2), tf.reduce_sum(of_all**2, -2), combiner)
    rows = _rows(table, ids.flat_values, anchor)
    of_all = tf.ones_like(rows[:, :1])
    if weights is not None:
        of_all = tf.cast(weights.flat_values, rows.dtype)[:, tf.newaxis]
        rows = rows * of_all
    if ids.ragged_rank != 1 or ids.flat_values.shape.rank != 1:
        raise ValueError(f"table '{table.name}': ragged ids that are combined have two dimensions")
    segments, count = ids.value_rowids(), ids.nrows()

    def sums(values: Any) -> Any:
        return tf.math.unsorted_segment_sum(values, segments, count)

    return _divided(sums(rows), sums(of_all), sums(of_all**2), combiner)


def _divided(total: Any, weight: Any, squares: Any, combiner: str) -> Any:
    if combiner == "mean":
        return tf.math.divide_no_nan(total, weight)
    return tf.math.divide_no_nan(total, tf.sqrt(squares)) if combiner == "sqrtn" else total


def _apply(number: int, name: str, dim: int, ids: Any, gradients: Any) -> Any:
    values = tf.convert_to_tensor(gradients)
    if ids.dtype not in (tf.int32, tf.int64, tf.uint64):
        ids = tf.cast(ids, tf.int64)
    made = operations().rdma_transport_embedding_sum(ids, values, dim=dim, table=number)
    rows, _ = all_to_all(made.rows, made.splits, name=f"{name}/rows")
    sums, _ = all_to_all(made.sums, made.splits, name=f"{name}/gradients")
    applied = operations().rdma_transport_embedding_apply(rows, sums, table=number)
    with tf.control_dependencies([] if applied is None else [applied]):
        return barrier(name=f"{name}/barrier")


def _gradient(operation: Any, gradients: Any) -> Any:
    number, dim = operation.get_attr("table"), operation.get_attr("dim")
    name = operation.get_attr("table_name").decode()
    applied = _apply(number, name, dim, operation.inputs[0], gradients)
    with tf.control_dependencies([] if applied is None else [applied]):
        return None, tf.zeros([])


tf.RegisterGradient("RdmaTransportEmbeddingLookup")(_gradient)
