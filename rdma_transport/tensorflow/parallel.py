"""Functions of a batch that all ranks run together, each on its slice of the examples.

Every rank calls the function with the same batch. It runs on this rank's slice, and the outputs of
all ranks are gathered: the caller sees those of the whole batch, the same bits on all ranks.
Backwards, each rank takes its slice of the gradients of the outputs, and the gradients of the
variables are summed over the ranks. So what is computed from the outputs, and its gradients, are
those of one process::

    forward = rt.parallel(model)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(loss_of(labels, forward(images)))
    gradients = tape.gradient(loss, model.trainable_variables)

The function must treat each example by itself, and return tensors whose first dimension is that of
the examples. Inputs that have no first dimension in common run whole on each rank. Ranks compare a
digest of their inputs in each call, and of the gradients of outputs: what differs is an error of
TensorFlow on all ranks.
"""

import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record

from rdma_transport.tensorflow.groups import Group, world
from rdma_transport.tensorflow.rows import Cut, gather_rows, same_on_all_ranks
from rdma_transport.tensorflow.sums import sum_gradients

_DIFFERENT_INPUT = (
    "the ranks call {label} with different batches. Each rank must see the same data: usually a "
    "shuffle or an augmentation has a random seed of its own (np.random.default_rng(), "
    "random.Random() or tf.random.Generator without a seed), or the data depends on the process. "
    "Ranks whose batch is that of rank 0:"
)
_DIFFERENT_GRADIENT = (
    "the ranks compute different losses from the outputs of {label}: their labels or weights of "
    "examples differ, usually since a shuffle or an augmentation has a random seed of its own. "
    "Ranks whose gradient is that of rank 0:"
)
_SECOND = "second derivatives through {label}, which runs on several ranks, need a tf.GradientTape"
_local = threading.local()


class _Variables:
    """Variables by identity, which does not keep them alive."""

    def __init__(self) -> None:
        self._found: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def add(self, variable: Any) -> None:
        """Add a variable of TensorFlow."""
        self._found[id(variable)] = variable

    def __contains__(self, variable: Any) -> bool:
        return self._found.get(id(variable)) is variable

    def __len__(self) -> int:
        return len(self._found)


reduced_variables = _Variables()
"""The variables of which a parallel call has given gradients to this process."""


def is_parallel() -> bool:
    """Return whether this thread is inside a parallel call, or must not begin one."""
    return getattr(_local, "depth", 0) > 0


@contextmanager
def not_parallel() -> Iterator[None]:
    """Let functions run whole in this thread."""
    _local.depth = getattr(_local, "depth", 0) + 1
    try:
        yield
    finally:
        _local.depth -= 1


def parallel(function: Callable[..., Any], *, name: str | None = None) -> Callable[..., Any]:
    """Return `function` as one that all ranks run together; `name` is for messages."""
    label: Any = name or getattr(function, "__name__", "a function")

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        group = world()
        if group.size == 1 or is_parallel():
            return function(*args, **kwargs)
        structure = (args, kwargs)
        leaves = [_tensor(leaf) for leaf in tf.nest.flatten(structure)]
        places = [i for i, leaf in enumerate(leaves) if _has_rows(leaf)]
        cut = Cut.of([leaves[i] for i in places], group)
        if cut is None:
            return _replicated(function, structure, leaves)
        results: list[Any] = []

        def on_slices(*slices: Any) -> list[Any]:
            filled = list(leaves)
            for place, part in zip(places, slices, strict=True):
                filled[place] = part
            own_args, own_kwargs = tf.nest.pack_sequence_as(structure, filled)
            with not_parallel():
                results.append(function(*own_args, **own_kwargs))
            return [each for each in tf.nest.flatten(results[-1]) if tf.is_tensor(each)]

        outputs = iter(_call(on_slices, [leaves[i] for i in places], cut, group, label))
        return tf.nest.map_structure(
            lambda each: next(outputs) if tf.is_tensor(each) else each, results[0]
        )

    run.autograph_info__ = None  # type: ignore[attr-defined]  # autograph leaves it as it is
    return run


def _call(
    function: Callable[..., list[Any]],
    inputs: Sequence[Any],
    cut: Cut,
    group: Group,
    label: str,
) -> list[Any]:
    """Run a function of tensors on slices of the inputs; return what all ranks return."""
    wanted = [i for i, each in enumerate(inputs) if _needs_gradient(each)]

    @tf.custom_gradient
    def run(*differentiated: Any) -> Any:
        parts = [cut.take(each) for each in inputs]
        for place, each in zip(wanted, differentiated, strict=True):
            parts[place] = cut.take(each)
        sources = [parts[place] for place in wanted]
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(sources)
            outputs = [cut.checked(each, label) for each in function(*parts)]
        gathered = gather_rows(outputs, inputs, cut, group, _DIFFERENT_INPUT.format(label=label))

        def backward(*upstream: Any, variables: Sequence[Any] = ()) -> Any:
            if record.could_possibly_record():
                raise NotImplementedError(_SECOND.format(label=label))
            found = _gradients(tape, outputs, upstream, sources, cut, group, label)
            of_variables = found[len(sources) :]
            known = {id(each): of_variables[i] for i, each in enumerate(tape.watched_variables())}
            of_inputs = gather_rows(found[: len(sources)], (), cut, group, "")
            return of_inputs, [known.get(id(each)) for each in variables]

        return gathered, backward

    return list(run(*(inputs[place] for place in wanted)))


def _gradients(
    tape: Any,
    outputs: Sequence[Any],
    upstream: Sequence[Any],
    sources: Sequence[Any],
    cut: Cut,
    group: Group,
    label: str,
) -> list[Any]:
    """Return the gradients of this rank's sources, and those of the variables, of all ranks."""
    pairs = [
        (output, tf.convert_to_tensor(each))
        for output, each in zip(outputs, upstream, strict=True)
        if each is not None and (output.dtype.is_floating or output.dtype.is_complex)
    ]
    checked = same_on_all_ranks(
        [each for _, each in pairs], group, _DIFFERENT_GRADIENT.format(label=label)
    )
    variables = tape.watched_variables()  # in the order of their creation
    found = tape.gradient(
        [output for output, _ in pairs],
        [*sources, *variables],
        output_gradients=[cut.take_rows(each) for each in checked],
    )
    for each in variables:
        reduced_variables.add(each)
    of_sources = [
        tf.zeros_like(source) if each is None else tf.convert_to_tensor(each)
        for source, each in zip(sources, found, strict=False)
    ]
    return [cut.drop(each) for each in of_sources] + sum_gradients(
        found[len(sources) :], group=group
    )


def _replicated(function: Callable[..., Any], structure: Any, leaves: Sequence[Any]) -> Any:
    """Run a function whole: all ranks have the same inputs, and get the same gradients."""
    args, kwargs = tf.nest.pack_sequence_as(structure, leaves)
    with record.VariableWatcher() as watcher, not_parallel():
        result = function(*args, **kwargs)
    for each in watcher.watched_variables():
        reduced_variables.add(each)
    return result


def _tensor(leaf: Any) -> Any:
    return tf.convert_to_tensor(leaf) if isinstance(leaf, (np.ndarray, tf.Variable)) else leaf


def _has_rows(leaf: Any) -> bool:
    return (tf.is_tensor(leaf) or isinstance(leaf, tf.Tensor)) and leaf.shape.rank != 0


def _needs_gradient(tensor: Any) -> bool:
    """Return whether a tape watches a tensor; in a graph without one, whether it may be asked."""
    if not isinstance(tensor, tf.Tensor) or not tensor.dtype.is_floating:
        return False
    if record.could_possibly_record():
        return bool(record.should_record_backprop([tensor]))
    return not tf.executing_eagerly()
