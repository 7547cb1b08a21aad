"""Sessions for measuring: without the optimizers, which would remove the edges to be measured."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1
CLOSE_SECONDS = 3.0


def config(cpu_devices: int = 1) -> Any:
    """A ConfigProto that runs a graph as it was written."""
    made = v1.ConfigProto(device_count={"CPU": cpu_devices})
    made.graph_options.rewrite_options.disable_meta_optimizer = True
    made.graph_options.optimizer_options.opt_level = -1
    return made


def endless(here: str, there: str, elements: int) -> list[Any]:
    """Build a loop that passes a tensor back and forth between two devices until a task is lost.

    Turns control flow v2 off.
    """
    v1.disable_control_flow_v2()

    def body(i: Any, x: Any) -> Any:
        with tf.device(there):
            y = tf.negative(x)
        with tf.device(here):
            return i + 1, tf.negative(y)

    with tf.device(here):
        start = [tf.constant(0), tf.zeros([elements])]
        made: list[Any] = v1.while_loop(lambda i, _: i >= 0, body, start)
    return made


@contextmanager
def opened(target: str, graph: Any, options: Any = None) -> Iterator[Any]:
    """A session, closed within CLOSE_SECONDS or given up: TensorFlow waits for dead tasks.

    Must end before the cluster does. A session that was given up hangs the end of the interpreter
    as well: leave by `bench.support.exit.leave`.
    """
    session = v1.Session(target, graph=graph, config=options)
    try:
        yield session
    finally:
        closing = threading.Thread(target=session.close, daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)
