"""Linear regression with variables alone."""

import results
import tensorflow as tf

tf.random.set_seed(59)
x = tf.random.normal((50,))
y = 3.0 * x + 2.0
w, b = tf.Variable(0.0), tf.Variable(0.0)
for _ in range(5):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(w * x + b - y))
    dw, db = tape.gradient(loss, [w, b])
    w.assign_sub(0.1 * dw)
    b.assign_sub(0.1 * db)
results.save([w.numpy(), b.numpy()], loss=float(loss))
