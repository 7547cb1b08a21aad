"""One TensorFlow task as a process: makes a server, then answers one JSON command a line.

usage: task.py PROTOCOL JOB INDEX CLUSTER_JSON
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any


def report() -> dict:
    """What this process holds."""
    maps = open("/proc/self/maps").read()  # noqa: SIM115
    answer = {
        "fds": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "arena_maps": maps.count("rdma_transport_arena"),
        "shm_names": [name for name in os.listdir("/dev/shm") if "rdma" in name],
    }
    try:
        import rdma_transport

        answer["stats"] = rdma_transport.stats()
    except ImportError:
        answer["stats"] = None
    return answer


def run(answer: Callable[[str, str], Any]) -> None:
    """Run the server that the arguments describe, and answer the lines on standard input.

    `answer` takes the target of the server's sessions and a line.
    """
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive the parent
    protocol, job, index, cluster = sys.argv[1:5]
    import tensorflow as tf

    try:
        server = tf.distribute.Server(
            json.loads(cluster), job_name=job, task_index=int(index), protocol=protocol
        )
    except Exception as error:
        print(json.dumps({"error": type(error).__name__, "message": str(error)}), flush=True)
        sys.exit(3)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        if line.strip() == "exit":
            sys.exit(0)
        print(json.dumps(answer(server.target, line.strip())), flush=True)


if __name__ == "__main__":
    run(lambda target, line: report())
