"""Chains of operations that alternate between two devices, so each operation adds an edge.

A chain between two tasks runs in the process of the first one (`bench.remote_session`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from .remote_session import remote
from .support.cluster import Cluster
from .where import JOBS

# Kinds of chains, by name. An operation takes the value and the index of its hop.
IDENTITY, COMPUTED = "identity", "computed"
# The tensors of a chain take at most this much: each edge may have slots of its own.
CHAIN_BYTES = 2**31
MAX_DOUBLINGS = 100  # of the first values, which float32 must hold


def _operation(kind: str) -> Callable[[Any, int], Any]:
    import tensorflow as tf

    def compute(value: Any, hop: int) -> Any:
        return value * 0.5 if hop % 2 else value + 1.0

    return {IDENTITY: lambda value, _: tf.identity(value), COMPUTED: compute}[kind]


def fitting(lengths: Sequence[int], size: int) -> tuple[int, ...]:
    """Return the lengths whose tensors fit into CHAIN_BYTES, or else the first one."""
    return tuple(n for n in lengths if n * size <= CHAIN_BYTES) or (lengths[0],)


class Chain:
    """A session with a chain of each of `lengths`, whose edges carry `size` bytes.

    `target` is empty for devices of this process. `stack` closes the session. Raises RuntimeError
    if the devices differ and TensorFlow does not send a tensor for each hop.
    """

    def __init__(
        self,
        stack: ExitStack,
        target: str,
        devices: Sequence[str],
        size: int,
        lengths: Sequence[int],
        kind: str,
    ) -> None:
        import tensorflow as tf

        from .support.session import config, opened, v1

        self._operation = _operation(kind)
        # A computed chain halves its value at every second hop. This keeps the elements different.
        scale = 2.0 ** min(max(lengths) // 2, MAX_DOUBLINGS)
        graph = tf.Graph()
        with graph.as_default():
            with tf.device(devices[0]):
                start = tf.random.stateless_uniform([max(size // 4, 1)], (1, 2), -scale, scale)
                source = v1.get_variable("source", initializer=start, use_resource=True)
                value = source.read_value()
            self.runs = {n: self._build(tf, value, devices, n) for n in lengths}
            initializer = v1.global_variables_initializer()
        options = config(1 if target else len(set(devices)))
        self.session = stack.enter_context(opened(target, graph, options))
        self.session.run(initializer)
        if len(set(devices)) > 1:
            self._check_edges(v1, min(lengths))

    def _build(self, tf: Any, source: Any, devices: Sequence[str], hops: int) -> Any:
        value, last = source, devices[hops % 2]
        for hop in range(hops):
            with tf.device(devices[(hop + 1) % 2]):
                value = self._operation(value, hop)
        with tf.device(last):
            # What is timed touches one element; what is checked, outside of that, touches all.
            timed = value[:1].op
            expected = self._expected(source, hops)
            equal = tf.equal(tf.bitcast(value, tf.int32), tf.bitcast(expected, tf.int32))
            return timed, tf.reduce_all(equal)

    def _expected(self, source: Any, hops: int) -> Any:
        """Build the same chain on the current device."""
        value = source
        for hop in range(hops):
            value = self._operation(value, hop)
        return value

    def _check_edges(self, v1: Any, hops: int) -> None:
        """Check in the partitions that ran that every hop is an edge."""
        metadata = v1.RunMetadata()
        options = v1.RunOptions(output_partition_graphs=True)
        self.session.run(self.runs[hops][0], options=options, run_metadata=metadata)
        sends = sum(
            node.op in ("_Send", "_HostSend")
            for part in metadata.partition_graphs
            for node in part.node
        )
        if sends < hops:
            raise RuntimeError(f"TensorFlow kept {sends} of {hops} edges")

    def seconds(self, steps: Sequence[int]) -> list[float]:
        """Run a step for each number of hops, without a pause; return the seconds of each."""
        times = []
        for hops in steps:
            start = time.perf_counter()
            self.session.run(self.runs[hops][0])
            times.append(time.perf_counter() - start)
        return times

    def wrong(self, hops: int, steps: int = 3) -> int:
        """Return how many of `steps` results differ from those of one process in any bit."""
        return sum(not self.session.run(self.runs[hops][1]) for _ in range(steps))


def between(
    stack: ExitStack, cluster: Cluster, size: int, lengths: Sequence[int], kind: str
) -> Chain:
    """A chain between the first tasks of JOBS, the first of which runs SESSION_TASK."""
    devices = [f"/job:{job}/task:0" for job in JOBS]
    return remote(Chain, stack, cluster[JOBS[0], 0], devices, size, lengths, kind)


def on_each(
    stack: ExitStack,
    clusters: Mapping[str, Cluster],
    size: int,
    lengths: Sequence[int],
    kind: str,
    devices: Sequence[str],
) -> dict[str, Chain]:
    """A chain on each cluster; "local": one on two `devices` of this process."""
    chains: dict[str, Chain] = {
        name: between(stack, cluster, size, lengths, kind) for name, cluster in clusters.items()
    }
    return chains | {"local": Chain(stack, "", devices, size, lengths, kind)}
