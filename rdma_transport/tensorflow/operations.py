"""Operations for Python."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as graphs
from tensorflow.python.ops import control_flow_util

from rdma_transport.collectives.membership import is_elastic
from rdma_transport.tensorflow.groups import Group, world
from rdma_transport.tensorflow.library import operations
from rdma_transport.tensorflow.notes import Note, describe, note_of, store

REDUCTIONS = ("sum", "average", "min", "max", "product")
_ROWS = "gathered rows"
_SCHEMES = {
    "all_reduce": "dense",
    "reduce_scatter": "reduce-scatter",
    "all_gather": "gather",
    "broadcast": "broadcast",
    "all_to_all": "all-to-all",
}


def all_reduce(
    tensor: Any,
    op: str = "sum",
    *,
    name: str | None = None,
    group: Group | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> Any:
    """Combine the tensors of all ranks element by element; return the result on all.

    Inputs are multiplied by `prescale`, and the result by `postscale`. An average of integers is
    rounded toward zero. ``tf.IndexedSlices`` are gathered, and can be summed or averaged.
    """
    if isinstance(tensor, tf.IndexedSlices):
        return _reduce_slices(tensor, op, name, group or world(), prescale * postscale)
    return grouped_all_reduce(
        [tensor], op, name=name, group=group, prescale=prescale, postscale=postscale
    )[0]


def grouped_all_reduce(
    tensors: Sequence[Any],
    op: str = "sum",
    *,
    name: str | None = None,
    group: Group | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> list[Any]:
    """Do ``all_reduce()`` of several tensors of one type in one call."""
    attributes = _reduction(op, prescale, postscale)
    return _delivered(call("all_reduce", name, group, tensors=list(tensors), **attributes))


def reduce_scatter(
    tensor: Any,
    op: str = "sum",
    *,
    name: str | None = None,
    group: Group | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> Any:
    """Combine the tensors of all ranks as ``all_reduce()``; return this rank's part of the rows.

    If the rows cannot be divided evenly, the first ranks get one more.
    """
    return grouped_reduce_scatter(
        [tensor], op, name=name, group=group, prescale=prescale, postscale=postscale
    )[0]


def grouped_reduce_scatter(
    tensors: Sequence[Any],
    op: str = "sum",
    *,
    name: str | None = None,
    group: Group | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> list[Any]:
    """Do ``reduce_scatter()`` of several tensors of one type in one call."""
    attributes = _reduction(op, prescale, postscale)
    return list(call("reduce_scatter", name, group, tensors=list(tensors), **attributes))


def all_gather(tensor: Any, *, name: str | None = None, group: Group | None = None) -> Any:
    """Concatenate the tensors of all ranks along the first dimension, in which they may differ.

    Scalars become a vector.
    """
    return grouped_all_gather([tensor], name=name, group=group)[0]


def grouped_all_gather(
    tensors: Sequence[Any], *, name: str | None = None, group: Group | None = None
) -> list[Any]:
    """Do ``all_gather()`` of several tensors of one type in one call."""
    given = [tf.convert_to_tensor(tensor) for tensor in tensors]
    rows = [tf.expand_dims(tensor, 0) if tensor.shape.rank == 0 else tensor for tensor in given]
    return list(call("all_gather", name, group, tensors=rows).gathered)


def broadcast(
    tensor: Any, root: int = 0, *, name: str | None = None, group: Group | None = None
) -> Any:
    """Return the tensor of rank `root` of the group. Those of the others have the same shape."""
    return call("broadcast", name, group, tensor=tensor, root=root)


def all_to_all(
    tensor: Any, splits: Any = None, *, name: str | None = None, group: Group | None = None
) -> tuple[Any, Any]:
    """Send ``splits[i]`` rows to each rank i; return what this rank gets, and how many of each.

    Without `splits`, each rank gets equally many.
    """
    given = tf.cast([] if splits is None else splits, tf.int32)
    received = call("all_to_all", name, group, tensor=tensor, splits=given)
    return received.received, received.received_splits


def barrier(*, name: str | None = None, group: Group | None = None) -> Any:
    """Wait until all ranks have called this. In a graph, return the operation."""
    return call("barrier", name, group)


def join(*, group: Group | None = None) -> Any:
    """Take part in the reductions of the others, with zeros, until all ranks have called this.

    For ranks that have fewer batches. Return the rank that called it last.
    """
    return call("join", None, group)


def _reduction(op: str, prescale: float, postscale: float) -> dict[str, Any]:
    if op not in REDUCTIONS:
        raise ValueError(f"the operation {op!r} is none of {', '.join(REDUCTIONS)}")
    return {
        "op": "sum" if op == "average" else op,
        "average": op == "average",
        "prescale": repr(float(prescale)),
        "postscale": repr(float(postscale)),
    }


def call(
    kind: str,
    name: str | None,
    group: Group | None,
    notes: Sequence[Note] = (),
    **arguments: Any,
) -> Any:
    """Make an operation, or run it in eager code. `notes` replace those of the tensors."""
    chosen = world() if group is None else group
    if chosen.rank < 0:
        raise ValueError(
            f"this process is not a member of group {chosen.number}, of the ranks "
            f"{list(chosen.ranks)}"
        )
    make: Callable[..., Any] = getattr(operations(), f"rdma_transport_{kind}")
    if tf.executing_eagerly():
        # Not a new name for each call: TensorFlow keeps a kernel for each set of attributes.
        return make(**arguments, group=chosen.number, tensor_name=name or kind)
    refuse_xla(kind)
    node = re.sub(r"[^A-Za-z0-9_.\-/]", "_", name or kind).lstrip("_-/") or kind
    made = make(**arguments, group=chosen.number, name=node)
    if kind != "barrier":
        run_independently(tf.nest.flatten(made)[0].op)
    if kind in _SCHEMES:
        given = arguments["tensors"] if "tensors" in arguments else [arguments["tensor"]]
        of_all = notes or [note_of(each) for each in given]
        store(tf.nest.flatten(made)[0].op, of_all, len(given), chosen.size, _SCHEMES[kind])
    return made


def refuse_xla(kind: str) -> None:
    """Raise ``NotImplementedError`` in a graph that XLA compiles."""
    if control_flow_util.GraphOrParentsInXlaContext(graphs.get_default_graph()):
        raise NotImplementedError(
            f"XLA cannot compile {kind}() of rdma_transport: set jit_compile=False in "
            "tf.function() or in the model's compile()"
        )


def place_in(group: Group) -> tuple[Any, Any]:
    """Return the rank of this process, and the size.

    As tensors in graphs of elastic jobs, which outlive the ranks with which they were built.
    """
    if tf.executing_eagerly() or not is_elastic():
        return group.rank, group.size
    made = call("place", None, group)
    return made.rank, made.size


def _delivered(tensors: Sequence[Any]) -> list[Any]:
    """Let what waits for several tensors of one call be started together: see the operation."""
    if len(tensors) < 2 or tf.executing_eagerly():
        return list(tensors)
    return list(operations().rdma_transport_deliver(list(tensors)))


def run_independently(operation: Any) -> None:
    """Let a call in a function run at any time: TensorFlow runs stateful operations in order."""
    manager = getattr(operation.graph, "experimental_acd_manager", None)
    if manager is not None:
        manager.run_independently(operation)


def _reduce_slices(
    slices: tf.IndexedSlices, op: str, name: str | None, group: Group, scale: float
) -> tf.IndexedSlices:
    if op not in ("sum", "average"):
        raise ValueError(f"tf.IndexedSlices can be summed and averaged, not combined by {op!r}")
    base = name or "all_reduce_slices"
    for each, part in ((slices.values, "values"), (slices.indices, "indices")):
        describe(each, what=note_of(slices).what, scheme=_ROWS, why=f"{part} of tf.IndexedSlices")
    values = all_gather(slices.values, name=f"{base}/values", group=group)
    indices = all_gather(slices.indices, name=f"{base}/indices", group=group)
    if op == "average":
        values = values / tf.cast(place_in(group)[1], values.dtype)
    if scale != 1.0:
        values *= tf.constant(scale, values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)
