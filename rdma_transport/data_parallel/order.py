"""Lets input pipelines give the same elements, in the same order, on all ranks.

A map with parallel calls runs its function for several elements at a time, and which of them draws
a random number first differs from process to process, and from run to run. So does the order of
elements where a program says that it may. Ranks need the same batches.
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
    """Look at the maps of all datasets, and at what may change their order. Once."""
    kind: Any = tf.data.Dataset
    kind.map = _in_order(_deterministic(kind.map))
    kind.interleave = _deterministic(kind.interleave)
    kind.with_options = _with_order(kind.with_options)


def _deterministic(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def changed(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("deterministic") is False:
            kwargs["deterministic"] = True
            _note_order(f"Dataset.{make.__name__}()")
        return make(*args, **kwargs)

    return changed


def _with_order(set_options: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(set_options)
    def changed(self: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        if options.deterministic is False:
            ordered = tf.data.Options()
            ordered.deterministic = True
            options = options.merge(ordered)
            _note_order("Dataset.with_options()")
        return set_options(self, options, *args, **kwargs)

    return changed


def _note_order(what: str) -> None:
    changes.note(f"{what} with deterministic=True: all ranks need the same batches")


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
