"""Training with tf-keras, as programs do it. Each case returns what one process must have, too."""

import numpy as np
import tensorflow as tf
import tf_keras as keras

from rdma_transport.keras import DataParallel
from tests.data_parallel.cases.running import case, folder_of, run


def data(examples=40, features=6, classes=3):
    """Return examples and labels."""
    generator = np.random.default_rng(5)
    x = generator.normal(size=(examples, features)).astype("float32")
    return x, generator.integers(0, classes, examples)


def dense(*layers):
    """Return a small model."""
    first = keras.layers.Dense(8, activation="tanh", kernel_regularizer="l2")
    return keras.Sequential([keras.Input((6,)), first, *layers, keras.layers.Dense(3)])


def crossentropy():
    """Return the usual loss."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def fitted(model, *args, optimizer=None, **options):
    """Return the history and the weights after training."""
    optimizer = optimizer or keras.optimizers.Adam(0.01)
    model.compile(optimizer, crossentropy(), metrics=["accuracy"])
    history = model.fit(*args, **({"batch_size": 16, "epochs": 2, "verbose": 0} | options))
    return [np.array(each) for each in history.history.values()] + model.get_weights()


@case
def arrays():
    model = dense()
    found = fitted(model, *data(), validation_split=0.2, class_weight={0: 1.0, 1: 3.0, 2: 0.5})
    return [*found, *model.evaluate(*data(), verbose=0), model.predict(data()[0], verbose=0)]


@case
def legacy_optimizer():
    return fitted(dense(), *data(), optimizer=keras.optimizers.legacy.SGD(0.1, momentum=0.9))


@case
def embedded_and_masked():
    words = np.random.default_rng(1).integers(0, 20, (24, 7))
    layers = [
        keras.layers.Embedding(20, 4, mask_zero=True),
        keras.layers.LSTM(5, return_sequences=True),
        keras.layers.Dense(20),
    ]
    return fitted(keras.Sequential(layers), words, np.roll(words, -1, 1))


@case
def ragged():
    rows = np.random.default_rng(1).integers(1, 6, 20)
    x = tf.RaggedTensor.from_row_lengths(tf.sin(tf.range(rows.sum() * 1.0))[:, None], rows)
    model = keras.Sequential([keras.layers.LSTM(5), keras.layers.Dense(3)])
    return fitted(model, x, rows % 3)


@case
def batches_of_numpy():
    model, (x, y) = dense(), data()
    with tf.GradientTape() as tape:
        loss = crossentropy()(y, model(x))
    return [loss, *tape.gradient(loss, model.trainable_variables)]


@case
def own_class_and_loop():
    class Twice(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.second = keras.layers.Dense(8), keras.layers.Dense(3)

        def call(self, x, training=False):
            if tf.reduce_sum(x) > 1e9:  # which AutoGraph converts
                x = -x
            return self.second(tf.nn.relu(self.first(x)))

    model, (x, y) = Twice(), data()
    optimizer = keras.optimizers.Adam(0.01)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = crossentropy()(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return [step(x[i : i + 16], y[i : i + 16]) for i in (0, 16, 32)] + model.get_weights()


@case
def synchronized_statistics():
    with DataParallel(sync_batch_norm=True).scope():
        first = keras.layers.Dense(8, use_bias=False)
        normalization = keras.layers.BatchNormalization()
        return fitted(keras.Sequential([first, normalization, keras.layers.Dense(3)]), *data())


@case
def callbacks():
    folder = folder_of("callbacks")
    best = str(folder / "best.keras")
    given = [
        keras.callbacks.ModelCheckpoint(best, monitor="val_loss", save_best_only=True),
        keras.callbacks.ModelCheckpoint(str(folder / "weights"), save_weights_only=True),
        keras.callbacks.BackupAndRestore(str(folder / "backup")),
        keras.callbacks.CSVLogger(str(folder / "log.csv")),
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=1, min_delta=0.1),
    ]
    found = fitted(dense(), *data(), validation_split=0.5, epochs=9, callbacks=given)
    lines = (folder / "log.csv").read_text().splitlines()
    return [len(lines), *keras.models.load_model(best).get_weights(), *found]


if __name__ == "__main__":
    run()
