"""Keras's layers for augmentation: in the input pipeline, and in a model."""

import keras
import results
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(81)
images = tf.random.stateless_uniform((64, 8, 8, 3), [1, 2])
labels = tf.cast(tf.reduce_mean(images[:, :4], [1, 2, 3]) > 0.5, tf.float32)[:, None]
change = keras.Sequential([layers.RandomFlip(), layers.RandomTranslation(0.1, 0.1)])
data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(16)
data = data.map(lambda x, y: (change(x, training=True), y), num_parallel_calls=2)
model = keras.Sequential(
    [keras.Input((8, 8, 3)), layers.RandomContrast(0.1), layers.Flatten(), layers.Dense(1)]
)
model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
history = model.fit(data, epochs=3, verbose=0)
results.save(model.get_weights(), metric=model.evaluate(images, labels, verbose=0))
