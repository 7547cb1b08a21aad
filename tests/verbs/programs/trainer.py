"""Task 0 of the cluster of two guests, and what uses it: training and large tensors over both
protocols, then steps that go on while the host disturbs the network or the other guest. Prints a
line of JSON for each thing that happens.

usage: trainer.py ADDRESS ADDRESS
"""

import json
import sys
import time
import zlib
from typing import Any

import tensorflow as tf

import rdma_transport
from examples import digits_model
from tests.support.member import PROTOCOLS, serve

v1 = tf.compat.v1
TASKS = ("/job:worker/task:0", "/job:worker/task:1")
STEPS = 4
BATCH = 8
LOOP_SECONDS = 800
LARGE = 1 << 20  # elements; large enough for two ports to share it


def say(event: str, **values: Any) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


def train(target: str) -> list[str]:
    """The losses of a few synchronous steps, exactly."""
    with tf.Graph().as_default():
        model = digits_model.build(digits_model.Placement(TASKS[1], TASKS))
        images, labels, _, _ = digits_model.data()
        config = v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
        with v1.Session(target, config=config) as session:
            session.run(model.initializer)
            losses = []
            for step in range(STEPS):
                feed = {}
                for tower in range(2):
                    start = (2 * step + tower) * BATCH
                    feed[model.images[tower]] = images[start : start + BATCH]
                    feed[model.labels[tower]] = labels[start : start + BATCH]
                loss, _ = session.run([model.loss, model.train], feed)
                losses.append(float(loss).hex())
            return losses


def exchange(target: str) -> dict[str, int]:
    """Checksums of large tensors that went there and back."""
    with tf.Graph().as_default():
        results = {}
        for number, dtype in enumerate((tf.float32, tf.float64, tf.int32, tf.bfloat16)):
            with tf.device(TASKS[0]):
                bits = tf.random.stateless_uniform([LARGE], [number, 2], -999, 999, tf.int32)
                there = tf.cast(bits, dtype) / 7 if dtype.is_floating else bits
            with tf.device(TASKS[1]):
                back = -there
            with tf.device(TASKS[0]):
                results[dtype.name] = tf.identity(back)
        with v1.Session(target) as session:
            arrays = session.run(results)
        return {name: zlib.crc32(array.tobytes()) for name, array in arrays.items()}


def paths() -> dict[str, Any]:
    stats = rdma_transport.stats()
    names = ("sent", "received", "peers", "errors", "copied_bytes", "ports")
    return {name: stats[name] for name in names}


def keep_stepping(target: str) -> None:
    """Step by step there and back; says when steps begin or cease to succeed, and how many ports
    the link uses, which is later than when a port is up again.
    """
    with tf.Graph().as_default():
        with tf.device(TASKS[0]):
            there = tf.random.stateless_uniform([LARGE // 4], seed=[1, 2])
        with tf.device(TASKS[1]):
            back = there + 1.0
        with tf.device(TASKS[0]):
            wrong = tf.reduce_sum(tf.cast(tf.not_equal(back, there + 1.0), tf.int32))
        session = v1.Session(target)
        state = ""
        end = time.monotonic() + LOOP_SECONDS
        while time.monotonic() < end:
            begun = time.monotonic()
            try:
                differences = int(session.run(wrong))
                (peer,) = rdma_transport.stats()["peers"]
                ports = 1 + peer["reason"].count(", ")  # "rxe0:1 10.7.0.1 -> 10.7.0.2, rxe1:1"
                path = f"{peer['transport']}, ports: {ports}"
                now = f"ok by {path}" if differences == 0 else "wrong"
                more: dict[str, Any] = {}
            except tf.errors.OpError as error:
                now = "failed"
                more = {"error": type(error).__name__, "message": error.message}
            if now != state:
                say(now, seconds=time.monotonic() - begun, **more)
            state = now
            if state == "failed":
                time.sleep(0.2)


def main() -> None:
    digits_model.HIDDEN = 32
    v1.disable_eager_execution()
    servers = serve(0, sys.argv[1:])
    say("serving")
    for protocol in PROTOCOLS:
        begun = time.monotonic()
        losses = train(servers[protocol].target)
        say(f"trained by {protocol}", losses=losses, seconds=time.monotonic() - begun, **paths())
    for protocol in PROTOCOLS:
        sums = exchange(servers[protocol].target)
        say(f"exchanged by {protocol}", sums=sums, **paths())
    keep_stepping(servers["rdma"].target)


if __name__ == "__main__":
    main()
