"""Variables by their handles: those that graphs use, whatever made them."""

from typing import Any

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops


class Variables:
    """Variables that graphs use, by their handles, in the order in which the graphs were built."""

    def __init__(self) -> None:
        self._handles: dict[int, Any] = {}
        self._read: Any = None

    def add(self, handles: list[Any]) -> None:
        """Add those that are not known yet."""
        self._handles |= {id(each): each for each in handles if id(each) not in self._handles}
        self._read = None

    def values(self) -> list[Any]:
        """Return the values, which later updates leave as they are."""
        if not self._handles:
            return []
        if self._read is None:
            handles = [(each, _kind_of(each)) for each in self._handles.values()]
            self._read = tf.function(
                lambda: [tf.raw_ops.ReadVariableOp(resource=h, dtype=kind) for h, kind in handles]
            )
        return list(self._read())

    def assign(self, values: list[Any]) -> None:
        """Overwrite the first ones."""
        for handle, value in zip(self._handles.values(), values, strict=False):
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def _kind_of(handle: Any) -> Any:
    (first, *_) = resource_variable_ops.get_eager_safe_handle_data(handle).shape_and_type
    return tf.as_dtype(first.dtype)


def variables_of(graph: Any) -> list[Any]:
    """Return the handles of the variables that a concrete function uses."""
    return [each for each in graph.captured_inputs if _is_variable(each)]


def _is_variable(captured: Any) -> bool:
    if captured.dtype != tf.resource:
        return False
    found = resource_variable_ops.get_eager_safe_handle_data(captured)
    return found is not None and found.is_set
