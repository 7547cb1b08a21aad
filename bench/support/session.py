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
