"""The quickstart for experts: tf.function, a convolution, metrics for training and test."""

import results
import tensorflow as tf
from tensorflow.keras import Model
from tensorflow.keras.layers import Conv2D, Dense, Flatten

tf.keras.utils.set_random_seed(21)
images = tf.random.stateless_uniform((50, 10, 10, 1), [1, 2])
labels = tf.cast(tf.reduce_sum(images, [1, 2, 3]) > 50, tf.int64)
train_ds = tf.data.Dataset.from_tensor_slices((images, labels)).take(40).shuffle(40).batch(16)
test_ds = tf.data.Dataset.from_tensor_slices((images, labels)).skip(40).batch(16)


class MyModel(Model):
    def __init__(self):
        super().__init__()
        self.conv1 = Conv2D(4, 3, activation="relu")
        self.flatten = Flatten()
        self.d1 = Dense(8, activation="relu")
        self.d2 = Dense(2)

    def call(self, x):
        return self.d2(self.d1(self.flatten(self.conv1(x))))


model = MyModel()
loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam()
train_loss = tf.keras.metrics.Mean(name="train_loss")
test_loss = tf.keras.metrics.Mean(name="test_loss")
test_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="test_accuracy")


@tf.function
def train_step(images, labels):
    with tf.GradientTape() as tape:
        predictions = model(images, training=True)
        loss = loss_object(labels, predictions)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    train_loss(loss)


@tf.function
def test_step(images, labels):
    predictions = model(images, training=False)
    test_loss(loss_object(labels, predictions))
    test_accuracy(labels, predictions)


kept = []
for _ in range(3):
    train_loss.reset_state()
    test_loss.reset_state()
    for batch in train_ds:
        train_step(*batch)
    for batch in test_ds:
        test_step(*batch)
    kept.append([float(m.result()) for m in (train_loss, test_loss, test_accuracy)])
results.save(model.get_weights(), kept=kept)
