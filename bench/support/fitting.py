"""A task of TF_CONFIG that fits a Keras model on request.

Reads a line "EPOCHS STEPS BATCH" for each turn; answers with JSON: milliseconds per step and the
loss, all bits, of each epoch but the first, which prepares; and what the transport counted so far.
"""

import json
import os
import sys
import time
from typing import Any

WIDTH = int(os.environ["BENCH_WIDTH"])
LAYERS = 2  # each of WIDTH x WIDTH float32


def build(strategy: Any) -> Any:
    """Return a compiled Keras model under a strategy."""
    import tf_keras as keras

    keras.utils.set_random_seed(7)
    with strategy.scope():
        layers = [keras.layers.Dense(WIDTH, activation="tanh") for _ in range(LAYERS)]
        model = keras.Sequential([keras.Input(WIDTH), *layers])
        model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
    return model


def batches(rows: int) -> Any:
    """Return a dataset that repeats one batch."""
    import tensorflow as tf

    x = tf.random.stateless_normal([rows, WIDTH], [1, 2])
    return tf.data.Dataset.from_tensors((x, tf.tanh(x[:, ::-1]))).repeat()


def turn(model: Any, data: Any, epochs: int, steps: int) -> dict[str, Any]:
    """Fit for so many epochs, after one that is not counted; return ms per step and losses."""
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
    """Fit as the lines on standard input ask for."""
    import tensorflow as tf
    import tf_keras as keras

    def data(rows: int) -> Any:
        if resolver.task_type == "chief":
            return keras.utils.experimental.DatasetCreator(lambda _: batches(rows))
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return batches(rows).with_options(options)

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type == "chief":
        strategy = tf.distribute.ParameterServerStrategy(resolver)
    else:
        strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
    model = build(strategy)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        epochs, steps, rows = map(int, line.split())
        print(json.dumps(turn(model, data(rows), epochs, steps)), flush=True)


if __name__ == "__main__":
    main()
