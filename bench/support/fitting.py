"""A task of TF_CONFIG that fits a Keras model whenever it is told to.

Reads a line "EPOCHS STEPS" for each turn; answers with JSON: milliseconds per step and the loss,
all bits, of each epoch but the first, which prepares; and what the transport counted so far.
"""

import json
import sys
import time
from typing import Any

WIDTH = 2048
LAYERS = 2  # each of WIDTH x WIDTH float32, 16 MiB
BATCH = 4  # small, so that communication and not arithmetic is measured


def build(strategy: Any) -> Any:
    import tf_keras as keras

    keras.utils.set_random_seed(7)
    with strategy.scope():
        layers = [keras.layers.Dense(WIDTH, activation="tanh") for _ in range(LAYERS)]
        model = keras.Sequential([keras.Input(WIDTH), *layers])
        model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
    return model


def batches(_: Any = None) -> Any:
    """One batch, again and again."""
    import tensorflow as tf

    x = tf.random.stateless_normal([BATCH, WIDTH], [1, 2])
    return tf.data.Dataset.from_tensors((x, tf.tanh(x[:, ::-1]))).repeat()


def turn(model: Any, data: Any, epochs: int, steps: int) -> dict[str, Any]:
    import tf_keras as keras

    import rdma_transport

    class Clock(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.start = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            milliseconds.append(1e3 * (time.perf_counter() - self.start) / steps)

    milliseconds: list[float] = []
    history = model.fit(
        data, epochs=epochs + 1, steps_per_epoch=steps, callbacks=[Clock()], verbose=0
    ).history
    return {
        "ms": milliseconds[1:],
        "losses": [loss.hex() for loss in history["loss"][1:]],
        "stats": rdma_transport.stats(),
    }


def main() -> None:
    import tensorflow as tf
    import tf_keras as keras

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type == "chief":
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        data = keras.utils.experimental.DatasetCreator(batches)
    else:
        strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        data = batches().with_options(options)
    model = build(strategy)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        epochs, steps = map(int, line.split())
        print(json.dumps(turn(model, data, epochs, steps)), flush=True)


if __name__ == "__main__":
    main()
