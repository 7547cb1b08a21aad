"""Which rows of a table a gradient is for, in a call on a slice of the examples: why these.

The gradient of a lookup has a row for each index. Ranks have looked up the examples of their
slices, and together the indices of one process. But one process looks up once what does not follow
from examples, such as positions. The optimizers of Keras 3 see the difference: they square slices
without adding those of a row first.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_callbacks
from tensorflow.python.framework import ops as graphs


class Origin(IntEnum):
    """Where indices come from."""

    ELSEWHERE = 0
    """Not from examples: all ranks have those of one process."""
    EXAMPLES = 1
    """Each from an example: all ranks together have those of one process."""
    UNIQUE = 2
    """From examples, but each index once."""
    UNKNOWN = 3
    """From a function that TensorFlow calls, which gets examples."""
    MIXED = 4
    """Some from examples, and some not."""


_SIZES = ("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike")
_FUNCTIONS = ("PartitionedCall", "If", "While", "Case", "Merge", "MapDefun", "SymbolicGradient")


class Origins:
    """Follows tensors through a call of a function, and through its gradient.

    In eager code that takes time for each operation, so only while it is `wanted`.
    """

    def __init__(self, rows: Sequence[Any], wanted: bool) -> None:
        self._found = {_key(each): Origin.EXAMPLES for each in _flat(rows)}
        self._wanted = wanted
        self._graph = None if tf.executing_eagerly() else graphs.get_default_graph()
        self._made = 0 if self._graph is None else len(self._graph.get_operations())

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Look at what a block does in eager code. In graphs, ``of()`` looks."""
        if self._graph is not None or not self._wanted:
            yield
            return
        op_callbacks.add_op_callback(self._look)
        try:
            yield
        finally:
            op_callbacks.remove_op_callback(self._look)

    def of(self, gradients: Sequence[Any]) -> list[Origin]:
        """Return the origins of the indices of gradients: of others than slices, ELSEWHERE."""
        if not any(isinstance(each, tf.IndexedSlices) for each in gradients):
            return [Origin.ELSEWHERE] * len(gradients)
        if self._graph is not None:
            self._look_at(self._graph, self._made)
            graph: Any = graphs.get_default_graph()
            if graph is not self._graph:  # that of the gradient, which captures tensors
                for outer, inner in getattr(graph, "captures", ()):
                    self._found[_key(inner)] = self._origin(outer)
                self._look_at(graph, 0)
        elif not self._wanted:
            return [Origin.UNKNOWN] * len(gradients)
        slices = [isinstance(each, tf.IndexedSlices) for each in gradients]
        return [
            self._origin(each.indices) if is_slices else Origin.ELSEWHERE
            for each, is_slices in zip(gradients, slices, strict=True)
        ]

    def _origin(self, tensor: Any) -> Origin:
        return self._found.get(_key(tensor), Origin.ELSEWHERE)

    def _look_at(self, graph: Any, first: int) -> None:
        for each in graph.get_operations()[first:]:
            self._look(each.type, each.inputs, (), each.outputs)

    def _look(self, name: Any, inputs: Any, _: Any, outputs: Any, *__: Any, **___: Any) -> None:
        kind: str = name.decode() if isinstance(name, bytes) else name  # bytes in eager code
        if kind in _SIZES:
            return
        found = [self._origin(each) for each in inputs]
        origin = max(found, default=Origin.ELSEWHERE)
        if origin == Origin.ELSEWHERE:
            return
        if kind.startswith("Unique"):
            origin = max(origin, Origin.UNIQUE)
        elif kind.startswith("__") or any(each in kind for each in _FUNCTIONS):
            origin = max(origin, Origin.UNKNOWN)
        elif kind == "ConcatV2" and outputs[0].shape.rank == 1:
            same = len(set(found[:-1])) == 1 and origin != Origin.UNIQUE
            origin = origin if same else Origin.MIXED
        for each in outputs:
            self._found[_key(each)] = origin


def _flat(rows: Sequence[Any]) -> list[Any]:
    return list(tf.nest.flatten(list(rows), expand_composites=True))


def _key(tensor: Any) -> Any:
    return tensor._id if hasattr(tensor, "numpy") else (id(tensor.graph), tensor.name)
