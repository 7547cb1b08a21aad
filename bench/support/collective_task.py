"""One worker of several, which runs TensorFlow's collectives; all workers get the same commands.

usage: collective_task.py TF_CONFIG

Reads one JSON command a line: {"op", "bytes", "count", "dtype"}, and answers each with
{"seconds": of the whole function, "digest": of what it returned} or {"error", "message"}.
Reductions also take {"merge", "final"}: TensorFlow's names of operations. With {"special": true},
floating-point values include zeros of both signs, infinities, NaN and subnormal numbers. With
{"values": true}, the answer also has "input" and "output", in base64. With {"cancel_after"}, the
function is cancelled after that many seconds.
"stats" is answered with the transport's counters. "abort" aborts all collectives, and "anew" resets
TensorFlow's executor of them; both are answered with {"done": true}.
"""

import base64
import ctypes
import hashlib
import itertools
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

GROUP = 7


class Collectives:
    """Functions of one tensor that repeat a collective, each time on the last result."""

    def __init__(self, index: int, size: int, device: str) -> None:
        self.index, self.size, self.device = index, size, device
        self._instances = itertools.count(100)
        self._built: dict[str, tuple[Callable[[Any], Any], Any]] = {}

    def _keys(self) -> dict[str, Any]:
        import tensorflow as tf

        return {
            "group_size": tf.constant(self.size),
            "group_key": tf.constant(GROUP),
            "instance_key": tf.constant(next(self._instances)),
        }

    def all_reduce(self, value: Any, merge: str = "Add", final: str = "Id") -> Any:
        """Return the sum over all workers, in the shape of `value`."""
        import tensorflow as tf

        return tf.raw_ops.CollectiveReduceV2(
            input=value,
            ordering_token=[],
            merge_op=merge,
            final_op=final,
            communication_hint="ring",
            **self._keys(),
        )

    def reduce_scatter(self, value: Any, merge: str = "Add", final: str = "Id") -> Any:
        """Return this worker's part of the sum, as often as there are workers."""
        import tensorflow as tf

        part = tf.raw_ops.CollectiveReduceScatterV2(
            input=value,
            ordering_token=[],
            merge_op=merge,
            final_op=final,
            communication_hint="ring",
            **self._keys(),
        )
        return tf.ensure_shape(tf.concat([part] * self.size, 0), value.shape)

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

    def prepare(self, command: dict[str, Any]) -> tuple[Any, Any]:
        """The function, traced, and what it is called with."""
        import tensorflow as tf

        dtype = tf.as_dtype(command.get("dtype", "float32"))
        elements = command["bytes"] // dtype.size
        if command["bytes"] > 0:
            elements = max(elements, 1)
        options = {name: command[name] for name in ("merge", "final") if name in command}
        key = json.dumps([command["op"], dtype.name, elements, command["count"], options])
        if key not in self._built:
            collective = getattr(self, command["op"])

            @tf.function(autograph=False)
            def repeated(value: Any) -> Any:
                with tf.device(self.device):
                    for _ in range(command["count"]):
                        value = collective(value, **options)
                return value

            seed = [self.index, elements]
            value = tf.cast(tf.random.stateless_uniform([elements], seed, -100.0, 100.0), dtype)
            self._built[key] = repeated, value
        repeated, value = self._built[key]
        return repeated, self.special(value) if command.get("special") else value

    def special(self, value: Any) -> Any:
        """Replace the first elements of `value` so that all pairs of special values meet."""
        import ml_dtypes
        import numpy as np
        import tensorflow as tf

        if not value.dtype.is_floating:
            return value
        dtype = value.dtype.as_numpy_dtype
        kind = ml_dtypes.finfo(dtype)
        least, most = kind.smallest_subnormal, kind.smallest_normal - kind.smallest_subnormal
        numbers = [math.nan, 0.0, -0.0, math.inf, -math.inf, 0.5, least, -least, most, -most]
        special = np.array(numbers, dtype)
        special.view(f"u{special.itemsize}")[0] |= 5  # NaN's payload
        power = len(special) ** self.index
        mine = special[np.arange(len(special) ** self.size) // power % len(special)]
        count = min(len(mine), value.shape[0])
        return tf.concat([tf.constant(mine[:count]), value[count:]], 0)


def cancelled_after(seconds: float, function: Any) -> Callable[[Any], Any]:
    """Return the function so that it is cancelled while it runs."""
    from tensorflow.python.eager import cancellation

    manager = cancellation.CancellationManager()
    threading.Timer(seconds, manager.start_cancel).start()
    cancelable: Callable[[Any], Any] = manager.get_cancelable_function(function)
    return cancelable


def in_base64(tensor: Any) -> str:
    """Return the bytes of a tensor as text."""
    return base64.b64encode(tensor.numpy().tobytes()).decode()


def digest(tensor: Any) -> str:
    """Return the SHA-256 of the bytes of a tensor."""
    return hashlib.sha256(tensor.numpy().tobytes()).hexdigest()


def answer(collectives: Collectives, command: dict[str, Any]) -> dict[str, Any]:
    """Run the operation of a command; return its seconds, and a digest or an error."""
    import tensorflow as tf

    function, value = collectives.prepare(command)
    if "cancel_after" in command:
        function = cancelled_after(command["cancel_after"], function.get_concrete_function(value))
    start = time.perf_counter()
    try:
        result = function(value)
        result.numpy()
    except tf.errors.OpError as error:
        seconds = time.perf_counter() - start
        return {"error": type(error).__name__, "message": error.message, "seconds": seconds}
    answered = {"seconds": time.perf_counter() - start, "digest": digest(result)}
    if command.get("values"):
        answered |= {"input": in_base64(value), "output": in_base64(result)}
    return answered


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
