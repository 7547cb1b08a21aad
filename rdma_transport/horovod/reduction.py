"""What is done with the gradients of a step. Tapes and optimizers share it."""

import dataclasses
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from rdma_transport.collectives.membership import is_elastic
from rdma_transport.horovod.compression import Compression, scheme_of
from rdma_transport.horovod.operations import (
    Average,
    Sum,
    allreduce,
    chosen_op,
    grouped_allreduce,
    variable_of,
)
from rdma_transport.horovod.process_sets import ProcessSet, global_process_set, group_of
from rdma_transport.tensorflow.notes import describe, describe_gradients
from rdma_transport.tensorflow.operations import place_in
from rdma_transport.tensorflow.sums import divided


class Locals:
    """Variables whose gradients are not reduced, because each rank has its own."""

    def __init__(self) -> None:
        self._variables: dict[int, Any] = {}  # by address; holds them, so that it is not reused

    def add(self, variable: Any) -> None:
        """Add a variable."""
        found = variable_of(variable)
        if not isinstance(found, (tf.Variable, tf.Tensor)):
            raise ValueError(f"this is no variable: {variable!r}")
        self._variables[id(found)] = found

    def __contains__(self, variable: Any) -> bool:
        return bool(self._variables) and id(variable_of(variable)) in self._variables


def local_variables_of(layers: Any) -> list[Any]:
    """Return the trainable variables of a layer, or of several."""
    if layers is None:
        return []
    found = layers if isinstance(layers, (list, tuple)) else [layers]
    return [variable for layer in found for variable in layer.trainable_weights]


@dataclasses.dataclass(frozen=True)
class Reduction:
    """How gradients are reduced. Raises ``ValueError`` for options that do not fit together."""

    compression: Any = Compression.none
    sparse_as_dense: bool = False
    op: Any = Average
    gradient_predivide_factor: float = 1.0
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True
    backward_passes_per_step: int = 1
    average_aggregated_gradients: bool = False
    num_groups: int = 0  # these two say what to reduce together; the bits do not depend on it
    groups: Any = None

    def __post_init__(self) -> None:
        chosen = chosen_op(self.op)
        object.__setattr__(self, "op", chosen)
        if chosen not in (Average, Sum):
            raise ValueError(f"gradients are reduced by Average or Sum, not {chosen.name}")
        if self.gradient_predivide_factor != 1.0 and chosen != Average:
            raise ValueError("gradient_predivide_factor needs op=hvd.Average")
        if self.backward_passes_per_step < 1:
            raise ValueError("backward_passes_per_step is 1 or more")
        if self.groups is not None and not isinstance(self.groups, (int, list, tuple)):
            raise ValueError("groups is a number, or a list of lists of variables")
        if self.num_groups < 0 or (isinstance(self.groups, int) and self.groups < 0):
            raise ValueError("a number of groups is not negative")

    def __call__(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any] = (),
        local: Locals | None = None,
    ) -> list[Any]:
        """Return the reduced gradients of `variables`; None stays None."""
        results = list(gradients)
        if not self.process_set.included() or (self.process_set.size() == 1 and not is_elastic()):
            return results
        describe_gradients(results, variables)
        shared: dict[int, Any] = {}  # those that are reduced
        for index, gradient in enumerate(results):
            if gradient is None:
                continue
            if local is not None and index < len(variables) and variables[index] in local:
                results[index] = self._local(gradient)
                continue
            sparse = isinstance(gradient, tf.IndexedSlices)
            dense = sparse and self.sparse_as_dense
            shared[index] = (
                describe(tf.convert_to_tensor(gradient), gradient) if dense else gradient
            )
        factor = self.gradient_predivide_factor
        sent, finish = scheme_of(self.compression).prepare(
            list(shared.values()),
            self.op.name.lower(),
            group_of(self.process_set),
            factors=factor == 1.0,
        )
        together, alone = divided(sent)
        options: dict[str, Any] = {
            "op": self.op,
            "compression": self.compression,
            "process_set": self.process_set,
        }
        factors: dict[str, Any] = {}
        if factor != 1.0:
            factors = {"prescale_factor": 1.0 / factor, "postscale_factor": factor}
        reduced = list(sent)
        small = grouped_allreduce([sent[place] for place in together], **options, **factors)
        for place, gradient in zip(together, small, strict=True):
            reduced[place] = gradient
        for place in alone:
            sparse = isinstance(sent[place], tf.IndexedSlices)
            reduced[place] = allreduce(sent[place], **options, **({} if sparse else factors))
        for index, gradient in zip(shared, finish(reduced), strict=True):
            results[index] = gradient
        return results

    def _local(self, gradient: Any) -> Any:
        """The losses of ranks are averaged, so a local gradient is that of one part of the sum."""
        if not self.scale_local_gradients:
            return gradient
        size = tf.cast(place_in(group_of(self.process_set))[1], gradient.dtype)
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(gradient.values / size, gradient.indices, gradient.dense_shape)
        return gradient / size


_accumulators: weakref.WeakSet["Accumulator"] = weakref.WeakSet()


def forget_passes() -> None:
    """Forget gradients that were added up for a step that will not be taken. In eager code.

    Those of a version 1 graph are variables of it, which a state restores.
    """
    if tf.executing_eagerly():
        for each in list(_accumulators):
            each.clear()


class Accumulator:
    """Adds up the gradients of several passes, and reduces them in the last one.

    Its variables are created with the first gradients, outside functions.
    """

    def __init__(self, passes: int, average: bool) -> None:
        self.passes, self.average = passes, average
        self.counter: Any = None  # passes since the last step
        self._sums: list[Any] = []
        _accumulators.add(self)

    def clear(self) -> None:
        """Forget the passes since the last step. In eager code."""
        if self.counter is not None:
            self.counter.assign(0)
            for each in self._sums:
                if each is not None:
                    each.assign(tf.zeros_like(each))

    def build(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Create what is not there yet."""
        if self.counter is not None:
            return
        with tf.init_scope():
            self.counter = _variable(0, tf.int32, "aggregation_counter")
            self._sums = [
                None
                if gradient is None
                else _variable(tf.zeros(variable_of(variable).shape, gradient.dtype), None, "sum")
                for gradient, variable in zip(gradients, variables, strict=True)
            ]

    def add(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        reduce: Callable[[Sequence[Any]], list[Any]],
    ) -> list[Any]:
        """Add the gradients of a pass; return the sums, reduced if this is the last pass."""
        self.build(gradients, variables)
        dense = [None if each is None else tf.convert_to_tensor(each) for each in gradients]
        added = [
            total.assign_add(each)
            for total, each in zip(self._sums, dense, strict=True)
            if total is not None
        ]
        # A step that was due and was not taken, for a gradient that is not finite, is over.
        counted = self.counter.assign(self.counter % self.passes + 1)
        with tf.control_dependencies([counted, *added]):
            due = tf.equal(self.counter.read_value(), self.passes)
            sums = [None if each is None else each.read_value() for each in self._sums]

        def last() -> list[Any]:
            scaled = [
                each / self.passes if self.average else tf.identity(each)
                for each in sums
                if each is not None
            ]
            results = reduce(scaled)
            with tf.control_dependencies(results):
                cleared = [
                    each.assign(tf.zeros_like(each)) for each in self._sums if each is not None
                ]
            with tf.control_dependencies(cleared):
                return [tf.identity(each) for each in results]

        def earlier() -> list[Any]:
            return [tf.identity(each) for each in sums if each is not None]

        found = iter(tf.cond(due, last, earlier) if any(s is not None for s in sums) else ())
        return [None if each is None else next(found) for each in sums]

    def step(self, apply: Callable[[], Any], skip: Callable[[], Any]) -> Any:
        """Call `apply` if the last ``add()`` was that of the last pass, `skip` otherwise."""

        def due() -> Any:
            with tf.control_dependencies([as_operation(apply())]):
                return tf.group(self.counter.assign(0))

        return tf.cond(
            tf.equal(self.counter.read_value(), self.passes),
            due,
            lambda: tf.group(as_operation(skip())),
        )


class Reducer:
    """Reduces the gradients of one optimizer: those of each pass, or the sums of several."""

    def __init__(self, reduction: Reduction) -> None:
        self.local = Locals()
        passes = reduction.backward_passes_per_step
        average = reduction.average_aggregated_gradients
        self.accumulator = Accumulator(passes, average) if passes > 1 else None
        self._reduction = reduction

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the reduced gradients of `variables`, or the sums so far; None stays None."""
        if self.accumulator is None:
            return self._reduction(gradients, variables, self.local)
        used = [v for g, v in zip(gradients, variables, strict=True) if g is not None]
        return self.accumulator.add(
            gradients, variables, lambda sums: self._reduction(sums, used, self.local)
        )


def as_operation(result: Any) -> Any:
    """Return what a graph runs for a result; nothing in eager code."""
    return tf.no_op() if result is None else tf.group(variable_of(result))


def _variable(value: Any, dtype: Any, name: str) -> Any:
    return tf.Variable(value, trainable=False, dtype=dtype, name=name)
