"""One TensorFlow task as a process: makes a server, then answers one JSON command a line.

usage: task.py PROTOCOL JOB INDEX CLUSTER_JSON
"""

import ctypes
import json
import os
import signal
import sys


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


def main() -> None:
    """Run the server and answer the lines on standard input."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive the parent
    protocol, job, index, cluster = sys.argv[1:5]
    import tensorflow as tf

    try:
        tf.distribute.Server(
            json.loads(cluster), job_name=job, task_index=int(index), protocol=protocol
        )
    except Exception as error:
        print(json.dumps({"error": type(error).__name__, "message": str(error)}), flush=True)
        sys.exit(3)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        if line.strip() == "exit":
            sys.exit(0)
        print(json.dumps(report()), flush=True)


if __name__ == "__main__":
    main()
