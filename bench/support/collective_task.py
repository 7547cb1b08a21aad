"""One worker of several, which runs TensorFlow's collectives; all workers get the same commands.

usage: collective_task.py TF_CONFIG

Reads one JSON command a line: {"op", "bytes", "count", "dtype", "seed"}, and answers each with
{"seconds": of the whole function, "digest": of what it returned} or {"error", "message"}.
"stats" is answered with the transport's counters. "abort" aborts all collectives, and "anew" resets
TensorFlow's executor of them; both are answered with {"done": true}.
"""

import ctypes
import hashlib
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

GROUP = 7


class Collectives:
    """Functions of one tensor that repeat a collective, each time on the last result."""

    def __init__(self, index: int, size: int, device: str) -> None:
        self.index, self.size, self.device = index, size, device
        self._instances = itertools.count(100)
        self._built: dict[tuple[str, str, int, int], tuple[Callable[[Any], Any], Any]] = {}

    def _keys(self) -> dict[str, Any]:
        import tensorflow as tf

        return {
            "group_size": tf.constant(self.size),
            "group_key": tf.constant(GROUP),
            "instance_key": tf.constant(next(self._instances)),
        }

    def all_reduce(self, value: Any) -> Any:
        """Return the sum over all workers, in the shape of `value`."""
        import tensorflow as tf

        return tf.raw_ops.CollectiveReduceV2(
            input=value,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
            communication_hint="ring",
            **self._keys(),
        )

    def all_gather(self, value: Any) -> Any:
        """Return the first parts of all workers, in the shape of `value`."""
        import tensorflow as tf

        part = value[: value.shape[0] // self.size]
        gathered = tf.raw_ops.CollectiveGatherV2(
            input=part, ordering_token=[], communication_hint="ring", **self._keys()
        )
        return tf.ensure_shape(gathered, value.shape)

    def all_to_all(self, value: Any) -> Any:
        """Exchange one part with each worker; the result has the shape of `value`."""
        import tensorflow as tf

        parts = tf.reshape(value, [self.size, -1])
        exchanged = tf.raw_ops.CollectiveAllToAllV2(
            input=parts, ordering_token=[], communication_hint="ring", **self._keys()
        )
        return tf.reshape(exchanged, value.shape)

    def broadcast(self, value: Any) -> Any:
        """Return the value of the first worker."""
        import tensorflow as tf

        keys = {
            "group_size": self.size,
            "group_key": GROUP,
            "instance_key": next(self._instances),
            "shape": value.shape,
        }
        if self.index == 0:
            return tf.raw_ops.CollectiveBcastSend(input=value, **keys)
        # What it gets does not depend on `value`; it shall wait for it all the same.
        with tf.control_dependencies([value]):
            return tf.raw_ops.CollectiveBcastRecv(T=value.dtype, **keys)

    def prepare(self, op: str, dtype: str, elements: int, count: int) -> tuple[Any, Any]:
        """The function, traced, and what it is called with."""
        import tensorflow as tf

        key = (op, dtype, elements, count)
        if key not in self._built:
            collective = getattr(self, op)

            @tf.function(autograph=False)
            def repeated(value: Any) -> Any:
                with tf.device(self.device):
                    for _ in range(count):
                        value = collective(value)
                return value

            seed = [self.index, elements]
            value = tf.cast(tf.random.stateless_uniform([elements], seed, -100.0, 100.0), dtype)
            self._built[key] = repeated, value
        return self._built[key]


def digest(tensor: Any) -> str:
    """Return the SHA-256 of the bytes of a tensor."""
    return hashlib.sha256(tensor.numpy().tobytes()).hexdigest()


def answer(collectives: Collectives, command: dict[str, Any]) -> dict[str, Any]:
    """Run the operation of a command; return its seconds, and a digest or an error."""
    import tensorflow as tf

    dtype = command.get("dtype", "float32")
    elements = max(command["bytes"] // tf.as_dtype(dtype).size, 1)
    function, value = collectives.prepare(command["op"], dtype, elements, command["count"])
    start = time.perf_counter()
    try:
        result = function(value)
        result.numpy()
    except tf.errors.OpError as error:
        seconds = time.perf_counter() - start
        return {"error": type(error).__name__, "message": error.message, "seconds": seconds}
    return {"seconds": time.perf_counter() - start, "digest": digest(result)}


def reset(command: str) -> None:
    """Abort the collective operations, or allow them again."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import errors

    current = context.context()
    if command == "abort":
        current.abort_collective_ops(errors.UNAVAILABLE, "aborted on purpose")
    else:
        current.enable_collective_ops(current._collective_ops_server_def)


def main(device: str = "CPU:0") -> None:
    """Run the commands on standard input, with buffers on a device of each task."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive the parent
    os.environ["TF_CONFIG"] = sys.argv[1]
    config = json.loads(sys.argv[1])
    import tensorflow as tf

    try:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    except Exception as error:
        print(json.dumps({"error": type(error).__name__, "message": str(error)}), flush=True)
        os._exit(3)
    index = config["task"]["index"]
    where = f"/job:worker/task:{index}/device:{device}"
    collectives = Collectives(index, strategy.num_replicas_in_sync, where)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if command == "stats":
            import rdma_transport

            print(json.dumps(rdma_transport.stats()), flush=True)
        elif command in ("abort", "anew"):
            reset(command)
            print(json.dumps({"done": True}), flush=True)
        else:
            print(json.dumps(answer(collectives, command)), flush=True)
    os._exit(0)  # TensorFlow's own shutdown waits for workers that may be gone


if __name__ == "__main__":
    main()
