"""Graphs over several tasks of which one operation fails when it is told to.

Each is built inside a default graph and returned as `Fetches`. `fails` and `delay` are
placeholders: whether the operation fails, and how many iterations of a loop run before it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
SMALL, LARGE = 300, 30000  # elements: in the notification itself, and beside it


@dataclass(frozen=True)
class Fetches:
    """`failing` has the operation that fails; `good` does not, or only if `fails` is fed."""

    failing: Any
    good: Any
    fails: Any
    delay: Any


def device(task: str) -> str:
    return f"/job:{task}/task:0"


def late(fails: Any, delay: Any) -> Any:
    """`fails`, after that many iterations on the device where this is called."""
    done = v1.while_loop(lambda i: i < delay, lambda i: i + 1, [tf.constant(0)])
    return tf.logical_and(fails, done >= 0)


def _assign(fails: Any) -> Any:
    """What a variable's initializer does with a value of another shape."""
    variable = tf.raw_ops.VariableV2(shape=[2], dtype=tf.float32)
    shape = tf.where(fails, [3], [2])
    value = v1.placeholder_with_default(tf.fill(shape, 1.0), None)
    return tf.raw_ops.Assign(ref=variable, value=value, validate_shape=True)


def _uninitialized(fails: Any) -> Any:
    never = v1.get_variable("never", [], use_resource=True)
    return v1.cond(fails, lambda: never.read_value(), lambda: tf.constant(0.0))


def _missing_file(fails: Any) -> Any:
    return v1.cond(
        fails, lambda: tf.io.read_file("/nowhere/at/all"), lambda: tf.constant("nothing")
    )


def _python(fails: Any) -> Any:
    """A function that exists in the client only; other tasks do not find it."""
    return v1.cond(
        fails,
        lambda: tf.raw_ops.PyFunc(input=[0.0], token="nobody", Tout=[tf.float32])[0],
        lambda: tf.constant(0.0),
    )


# From the placeholder to an operation that fails with it, each in its own way.
FAILURES: dict[str, Callable[[Any], Any]] = {
    "assert": lambda fails: tf.debugging.Assert(tf.logical_not(fails), ["told to"]),
    "assign": _assign,
    "divide": lambda fails: tf.constant(7) // tf.where(fails, 0, 1),
    "gather": lambda fails: tf.gather(tf.zeros([3]), tf.where(fails, 17, 1)),
    "missing file": _missing_file,
    "not a number": lambda fails: tf.debugging.check_numerics(
        tf.math.log(tf.where(fails, -1.0, 1.0)), "told to"
    ),
    "python": _python,
    "reshape": lambda fails: tf.reshape(tf.zeros([6]), tf.where(fails, [4, 2], [3, 2])),
    "uninitialized": _uninitialized,
}


def initializers(tasks: Sequence[str], failing: str, waits: bool) -> Fetches:
    """A group of assignments, one to a task; another one in the task `failing` does not fit.

    It fails at once unless it `waits` for the loop.
    """
    fails, delay = v1.placeholder(tf.bool, [], "fails"), v1.placeholder(tf.int32, [], "delay")
    assigned = []
    for task in tasks:
        with tf.device(device(task)):
            variable = tf.raw_ops.VariableV2(shape=[SMALL], dtype=tf.float32)
            assigned.append(tf.raw_ops.Assign(ref=variable, value=tf.random.uniform([SMALL])))
    with tf.device(device(failing)):
        bad = _assign(late(fails, delay) if waits else tf.constant(True))
    with tf.device(device(tasks[0])):
        good = tf.reduce_sum([tf.reduce_sum(value) for value in assigned]) > 0
    return Fetches(tf.group(*assigned, bad), good, fails, delay)


def crossing(tasks: Sequence[str], failing: str, waits: bool) -> Fetches:
    """Each task sends to each, what the task `failing` sends waits for its failure."""
    fails, delay = v1.placeholder(tf.bool, [], "fails"), v1.placeholder(tf.int32, [], "delay")
    sources = []
    for number, task in enumerate(tasks):
        with tf.device(device(task)):
            told = late(fails, delay) if waits else fails
            gate = [FAILURES["assert"](told)] if task == failing else []
            with tf.control_dependencies(gate):
                sources += [
                    tf.random.stateless_uniform([size], [number, size]) for size in (SMALL, LARGE)
                ]
    sums = []
    for task in tasks:
        with tf.device(device(task)):
            sums.append(tf.add_n([tf.reduce_sum(source) for source in sources]))
    return Fetches(sums, sums, fails, delay)


def refused(tasks: Sequence[str], failing: str, waits: bool) -> Fetches:
    """The task `failing` refuses its part of the graph: a kernel there cannot be made."""
    fetches = crossing(tasks, failing, waits)
    with tf.device(device(failing)):
        bad = tf.raw_ops.MaxPool(
            input=tf.ones([2, 2, 2, 2]), ksize=[2, 1, 1, 1], strides=[2, 1, 1, 1], padding="VALID"
        )
    return Fetches([fetches.failing, bad], fetches.good, fetches.fails, fetches.delay)


GRAPHS = {made.__name__: made for made in (initializers, crossing, refused)}


def random_graph(tasks: Sequence[str], seed: int) -> Fetches:
    """Operations on random tasks, each on the results of others; one of them fails."""
    chance = np.random.default_rng(seed)
    fails, delay = v1.placeholder(tf.bool, [], "fails"), v1.placeholder(tf.int32, [], "delay")
    count = int(chance.integers(8, 40))
    kind = chance.choice(sorted(FAILURES))
    at = int(chance.integers(0, count))
    nodes: list[Any] = []
    gates = []
    for number in range(count):
        with tf.device(device(chance.choice(tasks))):
            if number == at:
                told = late(fails, delay) if chance.random() < 0.5 else fails
                gates.append(tf.group(FAILURES[kind](told)))
            waits = gates if number == at or chance.random() < 0.2 else []
            with tf.control_dependencies(waits):
                nodes.append(_node(chance, nodes, number))
    picked = chance.choice(count, size=min(count, 4), replace=False)
    with tf.device(device(chance.choice(tasks))):
        total = tf.add_n([tf.reduce_sum(node) for node in nodes])
    good = [total, nodes[at], *(nodes[i] for i in picked)]
    return Fetches(good, good, fails, delay)


def _node(chance: np.random.Generator, nodes: Sequence[Any], number: int) -> Any:
    if len(nodes) < 2 or chance.random() < 0.2:
        size = int(chance.choice([1, SMALL, LARGE]))
        return tf.random.stateless_uniform([size], [number, size])
    one, two = (nodes[i] for i in chance.choice(len(nodes), size=2))
    match chance.integers(0, 3):
        case 0:
            return tf.negative(one)
        case 1:
            return one + tf.reduce_mean(two)
        case _:
            return tf.concat([one[:SMALL], two[:LARGE]], 0)
