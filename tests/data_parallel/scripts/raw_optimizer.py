"""Variables alone, updated by an optimizer of Keras."""

import keras
import results
import tensorflow as tf

keras.utils.set_random_seed(60)
x = tf.random.normal((50, 4), seed=1)
w = tf.Variable(tf.zeros((4, 1)))
optimizer = keras.optimizers.Adam(0.1)
for _ in range(5):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ w - tf.reduce_sum(x, 1, keepdims=True)) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, [w]), [w], strict=True))
results.save([w.numpy()], loss=float(loss))
