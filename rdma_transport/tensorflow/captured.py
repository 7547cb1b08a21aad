"""Tensors that a function uses and did not get: a tape loses their gradients."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework import op_callbacks


@contextmanager
def captured(given: Sequence[Any]) -> Iterator[list[Any]]:
    """List what operations of this thread use in a block, and a tape outside follows.

    Not `given`, nor what they compute in the block.
    """
    known = {id(each): each for each in given}  # held, so that no address is used again
    found: list[Any] = []

    def look(_: str, inputs: Any, __: Any, outputs: Any, *___: Any, **____: Any) -> None:
        new = [each for each in inputs if id(each) not in known and isinstance(each, tf.Tensor)]
        found.extend(
            each for each in new if each.dtype.is_floating and record.should_record_backprop([each])
        )
        known.update((id(each), each) for each in outputs)

    op_callbacks.add_op_callback(look)
    try:
        yield found
    finally:
        op_callbacks.remove_op_callback(look)
