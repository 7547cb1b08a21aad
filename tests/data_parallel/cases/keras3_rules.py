"""What data-parallel training with Keras 3 refuses, and what is equal only statistically."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import rdma_transport.tensorflow as rt
from tests.data_parallel.cases.keras3 import compiled, data, dense, fitted
from tests.data_parallel.cases.running import case, clear, run

clear()


class Layer(keras.layers.Layer):
    """A layer that computes a function of inputs and `training`."""

    scale = 1.0

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.seeds = keras.random.SeedGenerator(3)
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")

    def call(self, x, training=False):
        return self.function(self, x, training)


def model_with(*layers):
    """Return a model with these layers before the last."""
    return keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(3)])


def is_refused(function, match):
    """See that a function raises on all ranks."""
    with pytest.raises(Exception, match=f"(?s){match}"):
        function()
    return []


@case
def different_batches_are_refused():
    x, y = data()
    return is_refused(
        lambda: fitted(compiled(dense()), x + rt.world().rank, y), "different batches"
    )


@case
def one_different_label_is_refused():
    x, y = data()
    y[3] = (y[3] + rt.world().rank) % 3
    return is_refused(lambda: fitted(compiled(dense()), x, y, shuffle=False), "different losses")


@case
def mixing_examples_is_refused():
    layer = Layer(lambda self, x, training: x - tf.reduce_mean(x, 0))
    text = "model sequential.* cannot run .* depend on the other"
    return is_refused(lambda: fitted(compiled(model_with(layer)), *data()), text)


@case
def mixing_examples_in_training_only_is_refused():
    layer = Layer(lambda self, x, training: x + tf.roll(x, 1, 0) if training else x)
    model = model_with(layer, keras.layers.Dropout(0.2))
    return is_refused(lambda: fitted(compiled(model), *data()), "depend on the other")


@case
def what_depends_on_the_number_of_examples_is_refused():
    layer = Layer(lambda self, x, training: x / tf.cast(tf.shape(x)[0], x.dtype))
    return is_refused(lambda: model_with(layer)(data()[0]), "depend on the other")


@case
def losses_of_layers_are_refused():
    def add(self, x, training):
        self.add_loss(tf.reduce_sum(x))
        return x

    is_refused(lambda: fitted(compiled(model_with(Layer(add))), *data()), "a layer adds a loss")
    layer = keras.layers.Dense(4, activity_regularizer="l2")
    return is_refused(lambda: fitted(compiled(model_with(layer)), *data()), "a layer adds a loss")


@case
def sums_over_examples_in_variables_are_refused():
    def add(self, x, training):
        self.count.assign_add(tf.reduce_sum(x))
        return x

    text = "variables that it assigns"
    return is_refused(lambda: fitted(compiled(model_with(Layer(add))), *data()), text)


@case
def counts_of_calls_are_kept():
    def add(self, x, training):
        self.count.assign_add(1.0)
        return x

    layer = Layer(add)
    fitted(compiled(model_with(layer)), *data(), epochs=1)
    return [layer.count]


@case
def counts_of_examples_are_refused():
    def add(self, x, training):
        self.count.assign_add(tf.cast(tf.shape(x)[0], tf.float32))
        return x

    noise = keras.layers.GaussianNoise(0.1)
    for layers in ([Layer(add)], [Layer(add), noise]):
        model = compiled(model_with(*layers))
        is_refused(lambda: fitted(model, *data()), "variables that it assigns")  # noqa: B023
    return []


@case
def models_that_run_in_eager_code_only():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.last = keras.layers.Dense(3)

        def call(self, x):
            return self.last(x if float(tf.reduce_sum(x)) < 1e9 else -x)

    model, (x, _) = Model(), data()
    return [model(x)]


@case
def stateful_layers_are_refused():
    layer = keras.layers.LSTM(3, stateful=True)
    model = keras.Sequential([keras.Input((5, 2), batch_size=4), layer])
    return is_refused(lambda: model(np.ones((4, 5, 2), "float32")), "stateful layer")


@case
def outputs_that_are_not_of_examples_are_refused():
    layer = Layer(lambda self, x, training: tf.reduce_sum(x))
    return is_refused(lambda: layer_model(layer)(data()[0]), "first dimension is not that")


def layer_model(layer):
    """Return a model of one layer."""

    class Model(keras.Model):
        def call(self, x):
            return layer(x)

    return Model()


@case
def weights_that_differ_after_an_update_are_refused():
    model, (x, y) = compiled(dense()), data()
    model.train_on_batch(x, y)
    for _ in range(8):
        model.train_on_batch(x, y)
    model.layers[1].bias.assign(np.full(8, rt.world().rank))
    return is_refused(lambda: model.train_on_batch(x, y), "Variables that differ.*dense.*bias")


@case
def first_weights_are_those_of_rank_0():
    keras.utils.set_random_seed(100 + rt.world().rank)
    model, (x, _) = dense(), data()
    model(x)
    return model.get_weights()


@case
def dropout_differs_between_slices():
    model = keras.Sequential([keras.Input((50,)), keras.layers.Dropout(0.5)])
    found = model(np.ones((4, 50), "float32"), training=True).numpy()
    assert (found[0] != found[2]).any()
    again = model(np.ones((4, 50), "float32"), training=True).numpy()
    assert (found != again).any()
    return [found, again, *fitted(compiled(model_with(keras.layers.Dropout(0.5))), *data())]


@case
def samples_are_drawn_in_inference_too():
    layer = Layer(lambda self, x, t: x + keras.random.normal(tf.shape(x), seed=self.seeds))
    return fitted(compiled(model_with(layer)), *data())


@case
def statistics_are_averaged():
    model = model_with(keras.layers.BatchNormalization(momentum=0.5))
    x, y = data()
    found = fitted(compiled(model), x, y, epochs=1, batch_size=40, shuffle=False)
    means = (x[:20].mean(0) + x[20:].mean(0)) / 4.0
    np.testing.assert_allclose(model.layers[0].moving_mean, means, rtol=1e-4, atol=1e-5)
    return found


@case
def xla_is_left_out():
    return fitted(compiled(dense(), jit_compile=True), *data(), epochs=1)


@case
def models_in_functions_of_datasets_run_whole():
    model, (x, _) = dense(), data()
    rows = tf.data.Dataset.from_tensor_slices(x).batch(8).map(model, num_parallel_calls=2)
    return list(rows)


def of_a_scale(step):
    """Let a model use a tensor from outside."""
    scale = tf.Variable(1.0)
    layer = Layer(lambda self, x, training: x * self.scale)
    model = model_with(layer)

    def gradient(x):
        with tf.GradientTape() as tape:
            layer.scale = tf.exp(scale)
            loss = tf.reduce_sum(model(x))
        return tape.gradient(loss, scale)

    return lambda: step(gradient)(data()[0])


@case
def tensors_from_outside_are_refused():
    is_refused(of_a_scale(lambda step: step), "computed outside of the call")
    return is_refused(of_a_scale(tf.function), "computed outside of the call")


@case
def tensors_that_are_kept_are_refused():
    def keep(self, x, training):
        self.code = x * 2.0
        return x

    model, (x, _) = model_with(Layer(keep)), data()
    is_refused(lambda: model(x), "keeps tensors .*code")
    return is_refused(lambda: tf.function(lambda x: model(x))(x), "keeps tensors .*code")


@case
def tables_are_not_cut():
    class Model(keras.Model):
        def call(self, pair):
            return tf.matmul(pair[0], pair[1])

    model, (x, _), table = Model(), data(10), tf.random.normal((6, 4), seed=1)
    step = tf.function(lambda x: model([x, table]), input_signature=[tf.TensorSpec([None, 6])])
    np.testing.assert_allclose(step(x), tf.matmul(x, table), rtol=1e-5)
    unknown = tf.TensorSpec([None, None])
    step = tf.function(lambda x, y: model([x, y]), input_signature=[unknown, unknown])
    return is_refused(lambda: step(x, table), "different first dimensions")


if __name__ == "__main__":
    run()
