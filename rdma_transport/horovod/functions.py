"""Objects and variables of one rank for all."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

import rdma_transport.tensorflow as rt
from rdma_transport.collectives.membership import is_elastic
from rdma_transport.horovod.operations import broadcast, root_of, variable_of
from rdma_transport.horovod.process_sets import ProcessSet, global_process_set, group_of
from rdma_transport.keras.kinds import keras2

_TAG = 0x48000000  # of messages; the number of the process set follows


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the object of rank `root_rank`, by pickle. It needs no session."""
    group = group_of(process_set)
    root = root_of(root_rank, process_set)
    world = rt.communicator()
    if process_set is global_process_set:
        return world.broadcast_object(obj, root)
    tag = _TAG + (process_set.process_set_id or 0)
    if group.rank != root:
        return world.recv_object(root_rank, tag)[0]
    others = [rank for rank in group.ranks if rank != root_rank]
    for request in [world.start_send_object(obj, rank, tag) for rank in others]:
        request.wait()
    return obj


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Return a function that does ``broadcast_object()``."""
    return lambda obj: broadcast_object(obj, root_rank, process_set=process_set)


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Return the objects of all ranks, by pickle. It needs no session."""
    group = group_of(process_set)
    world = rt.communicator()
    if process_set is global_process_set:
        return list(world.all_gather_object(obj))
    tag = _TAG + (process_set.process_set_id or 0)
    mine = group.ranks[group.rank]
    others = [rank for rank in group.ranks if rank != mine]
    requests = [world.start_send_object(obj, rank, tag) for rank in others]
    found = [obj if rank == mine else world.recv_object(rank, tag)[0] for rank in group.ranks]
    for request in requests:
        request.wait()
    return found


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Overwrite variables, also those of Keras 3, by those of rank `root_rank`.

    In a graph, return the operation that does it.
    """
    assigned = []
    for each in map(variable_of, variables):
        value = broadcast(each, root_rank, process_set=process_set)
        if hasattr(each, "assign"):
            assigned.append(each.assign(value))
        else:
            assigned.append(tf.compat.v1.assign(each, value))
    return None if tf.executing_eagerly() else tf.group(*assigned)


def broadcast_global_variables(root_rank: int) -> Any:
    """Return the operation that overwrites all global variables of the version 1 graph."""
    if tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables() needs a graph of version 1: in eager code, use "
            "broadcast_variables(model.weights, root_rank=0)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


def value_of(result: Any) -> Any:
    """Return the value of a result; in a version 1 graph, by the default session or Keras'."""
    if tf.executing_eagerly() or tf.inside_function():
        return result
    return session_in_use().run(result)


def session_in_use() -> Any:
    """Return the default session of version 1, or that of Keras 2."""
    keras = keras2()
    session = tf.compat.v1.get_default_session()
    if session is None and keras is not None:
        session = keras.backend.get_session()
    if session is None:
        raise ValueError("there is no session: use this within 'with tf.compat.v1.Session():'")
    return session


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Overwrites all global variables by those of rank `root_rank` when a session begins."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self._root_rank = root_rank
        self._operation: Any = None

    def begin(self) -> None:
        """Add the operation to the graph."""
        if is_elastic():
            raise NotImplementedError(
                "TensorFlow's monitored sessions begin again when a rank is lost, and do not tell: "
                "in elastic jobs, use tf.compat.v1.Session and hvd.elastic.TensorFlowState"
            )
        if self._operation is None or self._operation.graph != tf.compat.v1.get_default_graph():
            self._operation = broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run it."""
        session.run(self._operation)
