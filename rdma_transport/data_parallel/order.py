"""Lets input pipelines draw random numbers in the same order on all ranks.

A map with parallel calls runs its function for several elements at a time, and which of them draws
first differs from process to process, and from run to run. Ranks need the same batches.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from rdma_transport import changes

# Parts of the names of operations whose results depend on those of other elements.
_DRAWING = ("Random", "TruncatedNormal", "Multinomial", "Stateful", "Rng", "PyFunc", "Assign")
_ALIKE = ("Stateless", "RandomDataset")


def follow_tensorflow() -> None:
    """Look at the maps of all datasets. Once."""
    kind: Any = tf.data.Dataset
    kind.map = _in_order(kind.map)


def _in_order(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def changed(
        self: Any, map_func: Any, num_parallel_calls: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        made = make(self, map_func, num_parallel_calls, *args, **kwargs)
        if num_parallel_calls is None:
            return made
        drawing = sorted({name for name in _operations(made) if _draws(name)})
        if not drawing:
            return made
        changes.note(
            f"Dataset.map() without parallel calls, since {', '.join(drawing)} would give elements "
            "other values on each rank"
        )
        kwargs.pop("deterministic", None)
        return make(self, map_func, None, *args, **kwargs)

    return changed


def _draws(operation: str) -> bool:
    return any(part in operation for part in _DRAWING) and not any(
        part in operation for part in _ALIKE
    )


def _operations(made: Any) -> Iterator[str]:
    """Yield the operations of the function of a map, and of those that it calls."""
    graph = made._map_func.function.graph.as_graph_def()
    yield from (node.op for node in graph.node)
    for function in graph.library.function:
        yield from (node.op for node in function.node_def)
