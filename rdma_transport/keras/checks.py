"""What is checked in training: that models treat examples alone, and that weights are equal."""

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

import rdma_transport.tensorflow as rt
from rdma_transport.keras.calls import Call, variable_of
from rdma_transport.tensorflow.notes import COMPARISON, describe
from rdma_transport.tensorflow.operations import all_gather, place_in
from rdma_transport.tensorflow.parallel import explained
from rdma_transport.tensorflow.rows import Batch, Cut
from rdma_transport.tensorflow.sameness import digest

_UPDATES = (1, 10)  # after which the weights of ranks are compared
_updates: weakref.WeakKeyDictionary[Any, tf.Variable] = weakref.WeakKeyDictionary()


def share(variables: Sequence[Any]) -> None:
    """Overwrite variables by those of rank 0, now, even while a function is traced."""
    with tf.init_scope():
        for each in variables:
            each.assign(rt.broadcast(tf.convert_to_tensor(each)))


def same_weights(optimizer: Any, variables: Sequence[Any]) -> tf.Tensor:
    """After some updates, fail with the names of the variables that differ from those of rank 0.

    Updates are counted in this process, or in each session of version 1, whatever an optimizer has
    restored. Returns a tensor that a graph of version 1 must compute behind the update.
    """
    names = [getattr(each, "path", each.name) for each in variables]
    where = getattr(optimizer, "name", None) or type(optimizer).__name__

    def compare() -> Any:
        rows = all_gather(digest([variable_of(each).read_value() for each in variables]))
        digests = tf.reshape(rows, [place_in(rt.world())[1], len(names), -1])
        equal = tf.reduce_all(tf.equal(digests, digests[:1]), [0, 2])
        wrong = tf.boolean_mask(tf.constant(names), tf.logical_not(equal))
        message = (
            f"after an update, ranks have different weights in optimizer {where}: something that "
            "depends on the rank or on chance changed them outside the calls of models. Variables "
            "that differ:"
        )
        check = tf.debugging.Assert(tf.reduce_all(equal), [message, wrong], summarize=100)
        with tf.control_dependencies([] if check is None else [check]):
            return tf.reduce_all(equal)

    due = tf.reduce_any(tf.equal(_count(optimizer), tf.constant(_UPDATES, tf.int64)))
    return tf.cond(due, compare, lambda: tf.constant(True))


def _count(optimizer: Any) -> Any:
    """Return the number of this update of an optimizer, from 1."""
    if not tf.compat.v1.executing_eagerly_outside_functions():
        numbers = tf.data.Dataset.range(1, sys.maxsize)  # a variable would need an initializer
        return tf.compat.v1.data.make_one_shot_iterator(numbers).get_next()
    with tf.init_scope():
        if optimizer not in _updates:
            _updates[optimizer] = tf.Variable(0, dtype=tf.int64, trainable=False)
    return tf.convert_to_tensor(_updates[optimizer].assign_add(1))


def examples_alone(
    run: Callable[..., Sequence[Any]],
    batch: Batch,
    trial: Call,
    done: tf.Variable,
    draws_again: bool,
) -> None:
    """Fail, once, if what a model computes for this rank's examples depends on the other examples.

    Its outputs for all examples are compared with those for this rank's rows. If it draws random
    numbers, they are compared with those for a batch whose other rows are changed, by the same
    numbers, if it `draws_again`. What it would assign to variables must not depend on the slice.
    `run` runs the model on arguments, and returns its tensors.
    """
    cut = batch.cut
    assert cut is not None

    def on(rows: list[Any]) -> tuple[Sequence[Any], list[Any]]:
        with trial.running():
            outputs = run(*batch.filled(rows))
        return outputs, trial.values

    def check() -> Any:
        outputs, assigned = on(batch.rows)
        pairs = []
        if not trial.draws or assigned:
            with explained(trial.label):
                for_slice, values = on([cut.take(each) for each in batch.rows])
            pairs += list(zip(assigned, values, strict=True))
            if not trial.draws:
                pairs += list(zip(map(cut.take, outputs), for_slice, strict=True))
        if trial.draws and draws_again:
            others, _ = on([_others_changed(each, cut) for each in batch.rows])
            pairs += list(zip(map(cut.take, outputs), map(cut.take, others), strict=True))
        alike = tf.reduce_all([True] + [_alike(mine, theirs) for mine, theirs in pairs])
        alike = describe(tf.cast(alike, tf.int32), what=COMPARISON)
        alike = rt.all_reduce(alike, "min") > 0
        message = (
            f"{trial.label} cannot run on several ranks: its outputs for some examples, or the "
            "variables that it assigns in the call, depend on the other examples of the batch, so "
            "each rank would compute something else from its slice"
        )
        check = tf.debugging.Assert(alike, [message])
        with tf.control_dependencies([] if check is None else [check]):
            done.assign(True)
        return tf.no_op()

    if tf.executing_eagerly():
        check()
    else:
        tf.cond(done, tf.no_op, check)


def _others_changed(rows: Any, cut: Cut) -> Any:
    if not isinstance(rows, tf.Tensor):
        return rows
    last = cut.first + cut.taken
    moved = tf.roll(rows, 1, 0)
    return tf.concat([moved[: cut.first], rows[cut.first : last], moved[last:]], 0)


def _alike(mine: Any, theirs: Any) -> Any:
    """Return whether floats differ by rounding only. Integers follow from floats, or are counts."""
    if not isinstance(mine, tf.Tensor) or not mine.dtype.is_floating:
        counts = isinstance(mine, tf.Tensor) and mine.shape.rank == 0
        return tf.reduce_all(tf.equal(mine, theirs)) if counts else tf.constant(True)
    if not mine.shape.is_compatible_with(theirs.shape):
        return tf.constant(False)
    rounding = {2: 0.1, 4: 1e-3, 8: 1e-6}[mine.dtype.size]
    far = tf.abs(mine - theirs) > rounding * (tf.reduce_max(tf.abs(mine)) + rounding)
    return tf.logical_not(tf.reduce_any(far))
