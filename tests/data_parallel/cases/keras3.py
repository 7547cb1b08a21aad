"""Training with Keras 3, as programs do it. Each case returns what one process must have, too."""

import keras
import numpy as np
import tensorflow as tf

from rdma_transport.keras import DataParallel
from tests.data_parallel.cases.running import case, folder_of, run


def data(examples=40, features=6, classes=3):
    """Return examples and labels."""
    generator = np.random.default_rng(5)
    x = generator.normal(size=(examples, features)).astype("float32")
    return x, generator.integers(0, classes, examples)


def dense(features=6, classes=3, **options):
    """Return a small model."""
    inputs = keras.Input((features,))
    hidden = keras.layers.Dense(8, activation="tanh", **options)(inputs)
    return keras.Model(inputs, keras.layers.Dense(classes)(hidden))


def crossentropy(**options):
    """Return the usual loss."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


def compiled(model, **options):
    """Return a model that is ready to be trained."""
    options = {
        "optimizer": keras.optimizers.Adam(0.01),
        "loss": crossentropy(),
        "metrics": ["accuracy"],
    } | options
    model.compile(**options)
    return model


def fitted(model, *args, **options):
    """Return the history and the weights after training."""
    history = model.fit(*args, **({"batch_size": 16, "epochs": 2, "verbose": 0} | options))
    return [np.array(each) for each in history.history.values()] + model.get_weights()


@case
def arrays():
    model = compiled(dense())
    found = fitted(model, *data(), validation_split=0.2)
    return [*found, *model.evaluate(*data(), verbose=0), model.predict(data()[0], verbose=0)]


@case
def generator():
    def batches():
        x, y = data()
        while True:
            for first in range(0, 40, 8):
                yield x[first : first + 8], y[first : first + 8]

    return fitted(compiled(dense()), batches(), steps_per_epoch=5, batch_size=None)


@case
def dataset():
    rows = tf.data.Dataset.from_tensor_slices(data()).shuffle(40, seed=3).batch(9)
    return fitted(compiled(dense()), rows, batch_size=None)


@case
def fewer_examples_than_ranks():
    model = compiled(dense())
    return [*fitted(model, *data(), batch_size=1, epochs=1), model.predict(data()[0][:1])]


@case
def several_steps_in_one_execution():
    model = compiled(dense(), steps_per_execution=3)
    return [
        *fitted(model, *data(), batch_size=4),
        model.predict(data()[0], batch_size=4, verbose=0),
    ]


@case
def in_batches():
    model = compiled(dense())
    x, y = data()
    found = [model.train_on_batch(x[:n], y[:n]) for n in (12, 12, 7)]
    found = [*np.ravel(found), *model.test_on_batch(x, y), model.predict_on_batch(x)]
    return found + model.get_weights()


@case
def weighted():
    weights = np.linspace(0, 2, 40).astype("float32")
    first = fitted(compiled(dense()), *data(), class_weight={0: 1.0, 1: 3.0, 2: 0.5})
    return first + fitted(compiled(dense()), *data(), sample_weight=weights)


@case
def summed():
    return fitted(compiled(dense(), loss=crossentropy(reduction="sum")), *data())


@case
def accumulated_and_averaged():
    optimizer = keras.optimizers.SGD(
        0.1, momentum=0.9, gradient_accumulation_steps=3, use_ema=True, clipnorm=0.5
    )
    return fitted(compiled(dense(), optimizer=optimizer), *data(), epochs=3)


@case
def regularized_and_frozen():
    model = dense(kernel_regularizer="l2")
    model.layers[-1].trainable = False
    return fitted(compiled(model), *data())


@case
def several_inputs_and_outputs():
    x, y = data()
    given = {"a": keras.Input((6,), name="a"), "b": keras.Input((6,), name="b")}
    shared = dense(classes=5)
    joined = keras.layers.Concatenate()([shared(given["a"]), shared(given["b"])])
    outputs = {
        "kind": keras.layers.Dense(3, name="kind")(joined),
        "size": keras.layers.Dense(1, name="size")(joined),
    }
    model = keras.Model(given, outputs)
    model.compile("adam", {"kind": crossentropy(), "size": "mse"})
    return fitted(model, {"a": x, "b": -x}, {"kind": y, "size": x[:, :1]})


@case
def embedded_and_masked():
    words = np.random.default_rng(1).integers(0, 20, (24, 7))
    model = keras.Sequential(
        [
            keras.layers.Embedding(20, 4, mask_zero=True),
            keras.layers.LSTM(5, return_sequences=True),
            keras.layers.Dense(20),
        ]
    )
    return fitted(compiled(model, metrics=[]), words, np.roll(words, -1, 1))


@case
def mixed_precision():
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
        model = compiled(dense(), optimizer=optimizer)
        return fitted(model, *data())
    finally:
        keras.mixed_precision.set_global_policy("float32")


@case
def own_step():
    class Twice(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.second = keras.layers.Dense(8), keras.layers.Dense(3)

        def call(self, x, training=False):
            return self.second(tf.nn.relu(self.first(x)))

        def train_step(self, pair):
            x, y = pair
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=y, y_pred=(self(x) + self(x * 2.0)) / 2.0)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss}

    return fitted(compiled(Twice(), metrics=None), *data())


@case
def eagerly():
    return fitted(compiled(dense(), run_eagerly=True), *data(), epochs=1)


def loop(step_of):
    """Train by a step; return the weights."""
    model, (x, y) = dense(), data()
    step = step_of(model, keras.optimizers.Adam(0.01))
    losses = [step(x[i : i + 16], y[i : i + 16]) for i in (0, 16, 32)]
    return [np.array(losses), *model.get_weights()]


def step_of(model, optimizer):
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = crossentropy()(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step


@case
def loop_in_eager_code():
    return loop(step_of)


@case
def loop_in_a_function():
    return loop(lambda *args: tf.function(step_of(*args)))


@case
def whole_epochs_in_a_function():
    model, (x, y) = dense(), data()
    step = step_of(model, keras.optimizers.Adam(0.01))
    rows = tf.data.Dataset.from_tensor_slices((x, y.astype("int32"))).batch(6).repeat(2)

    @tf.function
    def train():
        total = 0.0
        for batch in rows:
            total += step(*batch)
        return total

    return [train(), *model.get_weights()]


@case
def forward_in_a_function_and_gradient_outside():
    model, (x, y) = dense(), data()
    forward = tf.function(lambda x: model(x))
    with tf.GradientTape() as tape:
        loss = crossentropy()(y, forward(x)) + crossentropy()(y, forward(-x))
    return [loss, *tape.gradient(loss, model.trainable_variables)]


@case
def adversaries():
    generator, critic = dense(4, 6), dense(6, 1)
    optimizers = [keras.optimizers.Adam(0.01) for _ in range(2)]
    noise = np.random.default_rng(2).normal(size=(3, 15, 4)).astype("float32")
    x, _ = data(15)

    @tf.function
    def step(noise):
        with tf.GradientTape() as first, tf.GradientTape() as second:
            made = generator(noise, training=True)
            real, fake = critic(x, training=True), critic(made, training=True)
            good = tf.reduce_mean(tf.nn.softplus(-fake))
            bad = tf.reduce_mean(tf.nn.softplus(-real) + tf.nn.softplus(fake))
        for tape, loss, model, optimizer in zip(
            (first, second), (good, bad), (generator, critic), optimizers, strict=True
        ):
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)
        return good, bad

    losses = [step(each) for each in noise]
    return [np.array(losses), *generator.get_weights(), *critic.get_weights()]


@case
def gradients_of_inputs():
    model, (x, _) = dense(), data(9)
    given = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(given)
        total = tf.reduce_sum(model(given) ** 2)
    return [tape.gradient(total, given)]


@case
def losses_of_pairs_of_examples():
    model, (x, _) = dense(), data(12)
    with tf.GradientTape() as tape:
        found = tf.math.l2_normalize(model(x), 1)
        loss = tf.reduce_logsumexp(tf.matmul(found, found, transpose_b=True))
    return [loss, *tape.gradient(loss, model.trainable_variables)]


def penalized(model, x, step):
    """Train a critic with a penalty on its gradient."""
    optimizer = keras.optimizers.Adam(0.01)

    def train(given):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(given)
                scores = model(given, training=True)
            slope = inner.gradient(scores, given)
            loss = tf.reduce_mean(scores) + tf.reduce_mean((tf.norm(slope, axis=1) - 1.0) ** 2)
        gradients = outer.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    train = step(train)
    return [train(tf.constant(x)) for _ in range(3)] + model.get_weights()


@case
def penalty_on_gradients():
    return penalized(dense(), data(11)[0], lambda step: step)


@case
def penalty_on_gradients_in_a_function():
    return penalized(dense(), data(11)[0], tf.function)


@case
def two_tapes_around_a_function():
    model, (x, y) = dense(), data()
    forward = tf.function(lambda x: model(x))
    with tf.GradientTape() as first, tf.GradientTape() as second:
        loss = crossentropy()(y, forward(x))
    found = first.gradient(loss, model.trainable_variables)
    return found + second.gradient(loss, model.trainable_variables)


@case
def synchronized_statistics():
    with DataParallel(sync_batch_norm=True).scope():
        inputs = keras.Input((6,))
        hidden = keras.layers.BatchNormalization()(keras.layers.Dense(8, use_bias=False)(inputs))
        return fitted(compiled(keras.Model(inputs, keras.layers.Dense(3)(hidden))), *data())


@case
def callbacks():
    folder = folder_of("callbacks")
    model, (x, y) = compiled(dense()), data()
    best = folder / "best.keras"
    given = [
        keras.callbacks.ModelCheckpoint(best, monitor="val_loss", save_best_only=True),
        keras.callbacks.BackupAndRestore(folder / "backup", delete_checkpoint=False),
        keras.callbacks.CSVLogger(folder / "log.csv"),
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=1, min_delta=0.1),
        keras.callbacks.TensorBoard(folder / "board"),
    ]
    found = fitted(model, x, y, validation_split=0.5, epochs=9, callbacks=given)
    model.save_weights(folder / "end.weights.h5")
    model.load_weights(folder / "end.weights.h5")
    checkpoint = tf.train.Checkpoint(model=model)
    manager = tf.train.CheckpointManager(checkpoint, folder / "checkpoints", max_to_keep=2)
    for _ in range(3):
        manager.save()
    checkpoint.restore(manager.latest_checkpoint).assert_existing_objects_matched()
    model.export(folder / "exported", verbose=False)
    exported = tf.saved_model.load(folder / "exported")
    files = [each for each in folder.rglob("*") if each.is_file()]
    lines = (folder / "log.csv").read_text().splitlines()
    loaded = keras.models.load_model(best)
    return [len(files), len(lines), exported.serve(x), *loaded.get_weights(), *found]


if __name__ == "__main__":
    run()
