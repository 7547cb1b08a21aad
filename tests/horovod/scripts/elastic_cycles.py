"""Recoveries of a training, CYCLES times, in the same processes."""

import os
from pathlib import Path

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

CYCLES = int(os.environ["CYCLES"])
hvd.init()
model = keras.Sequential([keras.Input([256]), keras.layers.Dense(256), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(0.001)


@tf.function
def train_step(x: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - 1.0) ** 2)
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def resources() -> dict[str, int]:
    own = Path("/proc/self")
    found = {name: len(list((own / name).iterdir())) for name in ("fd", "task")}
    return found | {"maps": len((own / "maps").read_text().splitlines())}


@hvd.elastic.run
def train(state: hvd.elastic.State) -> None:
    for _ in range(5):
        train_step(tf.random.normal([8, 256]))
    found.append(resources())
    state.cycle += 1
    state.commit()
    if state.cycle < CYCLES:
        raise hvd.elastic.HorovodInternalError("on all ranks")


found: list[dict[str, int]] = []
train(hvd.elastic.TensorFlowKerasState(model, optimizer, cycle=0))
print(*found, sep="\n")
assert len(found) == CYCLES
early, last = found[CYCLES // 4], found[-1]
assert all(last[name] <= early[name] for name in ("fd", "task")), (early, last)
assert last["maps"] <= early["maps"] + CYCLES // 4, (early, last)
print("done", flush=True)
