"""Tensors that a function uses and did not get: a tape loses their gradients."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework import op_callbacks
from tensorflow.python.framework import ops as graphs


@contextmanager
def captured(given: Sequence[Any]) -> Iterator[list[Any]]:
    """List, when it ends, what a block used that was there before and a tape follows."""
    before = graphs.uid()  # tensors are numbered in the order in which they are made
    own = {id(each) for each in given}
    used: list[Any] = []
    found: list[Any] = []

    def look(_: str, inputs: Any, *others: Any, **more: Any) -> None:
        used.extend(inputs)

    if not tf.executing_eagerly():
        graph = graphs.get_default_graph()
        made = len(graph.get_operations())
        yield found
        operations = graph.get_operations()[made:]
        names = {each.name for each in operations}
        inputs = [each for operation in operations for each in operation.inputs]
        used = [each for each in inputs if each.op.name not in names]
    else:
        op_callbacks.add_op_callback(look)
        try:
            yield found
        finally:
            op_callbacks.remove_op_callback(look)
    found.extend(
        each
        for each in used
        if isinstance(each, tf.Tensor)
        and each.dtype.is_floating
        and (not hasattr(each, "numpy") or each._id < before)
        and id(each) not in own
        and record.should_record_backprop([each])
    )
