"""A claim about TensorFlow: a short training job over rdma has the bits that gRPC gives it.

usage, as the task of one host: python -m rdma_transport.qualify.training INDEX ADDRESS...
"""

import contextlib
import ctypes
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

from rdma_transport.doctor.result import FAIL, PASS, SKIP, WARN, Result
from rdma_transport.fabric import FabricError
from rdma_transport.qualify.context import Context

_START, _TRAIN = 300.0, 300.0
_PROTOCOLS = ("grpc", "rdma")
_STEPS, _BATCH, _INPUTS, _HIDDEN = 20, 32, 512, 1024


def training(context: Context) -> Result:
    """Synchronous training between the hosts has equal losses and weights over both protocols."""
    hosts = context.hosts
    if not context.training:
        return Result("training", SKIP, "--no-training")
    there = hosts.together(lambda: importlib.util.find_spec("tensorflow") is not None, 30)
    if not all(there):
        missing = [name for name, each in zip(hosts.names, there, strict=True) if not each]
        return Result("training", SKIP, f"no TensorFlow on {', '.join(missing)}")
    addresses = hosts.together(lambda: _places(context), 30)
    with _task(context, addresses) as task:
        hosts.together(lambda: task.line(_START) and True, _START)
        # Only host 0 has a session; the tasks of the others serve until it is done.
        found = hosts.together(lambda: task.line(_TRAIN) if hosts.rank == 0 else {}, _TRAIN)[0]
    grpc, rdma = (found[protocol] for protocol in _PROTOCOLS)
    sent = f"{rdma['tensors']:,} tensors over rdma, {rdma['seconds']:.1f} s; "
    sent += f"over gRPC {grpc['seconds']:.1f} s"
    context.figures["training"] = found
    if rdma["result"] != grpc["result"]:
        why = "tensors were changed on their way: do not use this fabric on these hosts"
        text = f"losses and weights of {_STEPS} steps differ from those of gRPC; {sent}"
        fix = {"shell": "rdma-transport qualify --json > qualify.json    # attach it to a report"}
        return Result("training", FAIL, text, why, fix)
    text = f"{_STEPS} steps of {hosts.size} tasks, all bits as over gRPC; {sent}"
    if not rdma["tensors"]:
        why = f"tensors fell back to gRPC: {rdma['reasons']}"
        fix = {"shell": "rdma-transport doctor    # on each host"}
        return Result("training", WARN, text, why, fix)
    return Result("training", PASS, text)


def _places(context: Context) -> list[str]:
    """Free ports of this host, one per protocol, at the address that reaches it."""
    address = context.descriptions[context.hosts.rank]["address"]
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in _PROTOCOLS:
            listener = stack.enter_context(socket.create_server(("", 0)))
            ports.append(listener.getsockname()[1])
    host = f"[{address}]" if ":" in address else address
    return [f"{host}:{port}" for port in ports]


class _Task:
    """The task of this host, a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def line(self, seconds: float) -> dict[str, Any]:
        """The next line that it prints; raise ``FabricError``."""
        read: list[str] = []
        assert self._process.stdout
        thread = threading.Thread(
            target=lambda: read.append(self._process.stdout.readline()),  # type: ignore[union-attr]
            daemon=True,
        )
        thread.start()
        thread.join(seconds)
        if thread.is_alive():
            raise FabricError(f"TensorFlow did not go on for {seconds:g} s")
        if not read[0]:
            raise FabricError(f"TensorFlow ended with code {self._process.wait()}")
        line: dict[str, Any] = json.loads(read[0])
        if "error" in line:
            raise FabricError(line["error"])
        return line


@contextlib.contextmanager
def _task(context: Context, addresses: list[list[str]]) -> Iterator[_Task]:
    places = [",".join(each) for each in addresses]
    settings = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    if context.hosts.fabric:
        settings["RDMA_TRANSPORT_FABRIC"] = context.hosts.fabric
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(context.hosts.rank), *places],
        env=os.environ | settings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        process_group=0,
    )
    try:
        yield _Task(process)
    finally:
        process.kill()
        process.wait()
        # Not closed: a thread may still read there, and ends with the process.


def _train(target: str, tasks: int) -> str:
    """Losses and weights after a few synchronous steps: the digest of all their bits."""
    import hashlib

    import numpy as np
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default():
        with tf.device(f"/job:worker/task:{tasks - 1}"):
            first = v1.get_variable(
                "first", initializer=_numbers(np, 1, _INPUTS, _HIDDEN), use_resource=True
            )
            second = v1.get_variable(
                "second", initializer=_numbers(np, 2, _HIDDEN, 1), use_resource=True
            )
        inputs = _numbers(np, 3, _BATCH, _INPUTS)
        gradients, losses = [], []
        for task in range(tasks):
            with tf.device(f"/job:worker/task:{task}"):
                hidden = tf.nn.relu(tf.matmul(tf.roll(inputs, task, 0), first.read_value()))
                loss = tf.reduce_mean((tf.matmul(hidden, second.read_value()) - 1.0) ** 2)
                losses.append(loss)
                gradients.append(v1.gradients(loss, [first, second]))
        with tf.device(f"/job:worker/task:{tasks - 1}"):
            updates = [
                variable.assign_sub(0.01 * sum(each))
                for variable, each in zip(
                    (first, second), zip(*gradients, strict=True), strict=True
                )
            ]
        config = v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
        config.operation_timeout_in_ms = int(_TRAIN * 500)
        digest = hashlib.sha256()
        with v1.Session(target, config=config) as session:
            session.run(v1.global_variables_initializer())
            for _ in range(_STEPS):
                for value in session.run([losses, updates])[0]:
                    digest.update(np.asarray(value).tobytes())
            for value in session.run([first, second]):
                digest.update(value.tobytes())
        return digest.hexdigest()


def _numbers(np: Any, seed: int, rows: int, columns: int) -> Any:
    return (np.random.default_rng(seed).standard_normal((rows, columns)) / 32).astype(np.float32)


def _say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def main() -> None:
    """Run the task of one host; with index 0, train, and print what came of it."""
    import time

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: not without its parent
    index, places = int(sys.argv[1]), [each.split(",") for each in sys.argv[2:]]
    import tensorflow as tf

    import rdma_transport

    tf.compat.v1.disable_eager_execution()
    servers = {
        protocol: tf.distribute.Server(
            {"worker": [place[number] for place in places]},
            job_name="worker",
            task_index=index,
            protocol=protocol,
        )
        for number, protocol in enumerate(_PROTOCOLS)
    }
    _say(serving=True)
    if index == 0:
        found: dict[str, Any] = {}
        for protocol in _PROTOCOLS:
            began = time.monotonic()
            result = _train(servers[protocol].target, len(places))
            seconds = time.monotonic() - began
            stats: Any = rdma_transport.stats()
            found[protocol] = {
                "result": result,
                "seconds": seconds,
                "tensors": sum(
                    modes[mode]["tensors"]
                    for modes in (stats["sent"], stats["received"])
                    for mode in modes
                    if mode != "grpc"
                ),
                "reasons": "; ".join(peer["reason"] for peer in stats["peers"]),
            }
        _say(**found)
    signal.pause()


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        _say(error=str(error).split("\n")[0] or repr(error))
