"""A tensor that two devices negate in turns, so that it crosses between them at each hop."""

import hashlib
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack

STEPS = 4  # of a turn, after one that warms up


class Alternation:
    """A session that negates a tensor of `size` bytes on two devices in turns, `hops` times.

    The tensor starts and ends on the first one. `source` is the processor that makes its values.
    `stack` closes it.
    """

    def __init__(
        self,
        stack: ExitStack,
        target: str,
        source: str,
        devices: Sequence[str],
        hops: int,
        size: int,
    ) -> None:
        import tensorflow as tf

        from .support.session import config, opened, v1

        a, b = devices
        graph = tf.Graph()
        with graph.as_default():
            with tf.device(source):
                start = tf.random.stateless_uniform([max(size // 4, 1)], (1, 2))
            with tf.device(a):
                variable = v1.get_variable("source", initializer=start, use_resource=True)
                value = variable.read_value()
            for hop in range(hops):
                with tf.device(a if hop % 2 else b):
                    value = tf.negative(value)
            with tf.device(a):
                self._result = tf.negative(value)
            initializer = v1.global_variables_initializer()
        self._session = stack.enter_context(opened(target, graph, config()))
        self._session.run(initializer)

    def milliseconds(self) -> float:
        """The mean of some steps."""
        times = []
        for _ in range(1 + STEPS):
            begin = time.perf_counter()
            self._session.run(self._result.op)
            times.append(time.perf_counter() - begin)
        return 1e3 * statistics.fmean(times[1:])

    def digest(self) -> str:
        """A digest of the tensor after a step."""
        return hashlib.sha256(self._session.run(self._result).tobytes()).hexdigest()
