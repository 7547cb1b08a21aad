"""Trains elastically, while processes fail as FAULT says; one process on all data is the oracle."""

import hashlib
import os
import signal
import time
from pathlib import Path

# Before init() changes it: the rank with which the job began.
SLOT, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FAULT, FOLDER = os.environ["FAULT"], Path(os.environ["FOLDER"])
FAILS = 0 if FAULT == "root" else 1
FAULTS_AT, STEPS, PER_COMMIT, BATCH = 8, 30, 5, 12
FIRST = int(os.environ["_RDMA_TRANSPORT_ELASTIC_MEMBER"]) < SIZE  # replaces none

import horovod.tensorflow as hvd  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402


def die() -> None:
    (FOLDER / f"died_{SLOT}").write_text(str(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)


def made() -> tuple[keras.Model, keras.Optimizer]:
    layers = [keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]
    model, optimizer = keras.Sequential([keras.Input([8]), *layers]), keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    return model, optimizer


def batch_of(step: int) -> tf.Tensor:
    return tf.random.stateless_normal([BATCH, 8], [step, 0])


@tf.function(input_signature=[tf.TensorSpec([None, 8])])  # never traced again
def train_step(x: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - tf.norm(x, axis=1, keepdims=True)) ** 2)
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return hvd.allreduce(loss)


def bits() -> str:
    values = [each.numpy().tobytes() for each in [*model.weights, *optimizer.variables]]
    return hashlib.sha256(b"".join(values)).hexdigest()


def check_oracle() -> None:
    """Train on whole batches, from where rank 0 began."""
    found = [each.numpy() for each in model.weights]
    model.set_weights(state.start)
    for each in optimizer.variables[2:]:
        each.assign(tf.zeros(each.shape))
    optimizer.iterations.assign(0)
    for step in range(state.step):
        x = batch_of(step)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - tf.norm(x, axis=1, keepdims=True)) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    for value, expected in zip(found, model.weights, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-3, atol=1e-4)


def resets() -> None:
    print(f"reset {hvd.size()}", flush=True)
    if FAULT == "sharing" and SLOT == 2 and FIRST:
        die()


if FAULT == "connecting" and SLOT == 2 and FIRST:
    from rdma_transport.collectives.rendezvous import Rendezvous

    real, calls = Rendezvous.exchange, []

    def exchange(self: Rendezvous, *arguments: object) -> object:
        calls.append(1)
        return real(self, *arguments) if len(calls) == 1 else die()

    Rendezvous.exchange = exchange

hvd.init()
keras.utils.set_random_seed(SLOT)
model, optimizer = made()
state = hvd.elastic.TensorFlowKerasState(
    model, optimizer, step=0, epochs=0, start=model.get_weights()
)
state.register_reset_callbacks([resets])


@hvd.elastic.run
def train(state: hvd.elastic.State) -> None:
    state.epochs += 1
    print(f"begins {hvd.rank()}/{hvd.size()} at {state.step}", flush=True)
    # Until the replacements are there, and some steps longer.
    end = max(STEPS, state.step + PER_COMMIT)
    while state.step < end or hvd.size() < SIZE:
        share = BATCH // hvd.size()
        mine = slice(hvd.rank() * share, (hvd.rank() + 1) * share)
        train_step(batch_of(state.step)[mine])
        state.step += 1
        print(f"{time.time():.3f} {state.epochs}: step {state.step} {bits()}", flush=True)
        if SLOT == FAILS and state.step >= FAULTS_AT and (FIRST or FAULT == "always"):
            if FAULT in ("raises", "always"):
                raise ValueError("the cause")
            die()
        time.sleep(0.02)
        if state.step % PER_COMMIT == 0:
            state.commit()


train(state)
check_oracle()
print("done", flush=True)
