"""Version 1: a graph whose outputs of a batch come from a wrapped function, and a session."""

import numpy as np
import results
import tensorflow.compat.v1 as tf

from rdma_transport.tensorflow import parallel

tf.disable_v2_behavior()
tf.enable_resource_variables()
tf.set_random_seed(56)
np.random.seed(56)
x = tf.placeholder(tf.float32, [None, 3])
y = tf.placeholder(tf.float32, [None, 1])
w = tf.get_variable("w", [3, 1])
b = tf.get_variable("b", [1], initializer=tf.zeros_initializer())
forward = parallel(lambda x: tf.matmul(x, w) + b)
loss = tf.reduce_mean(tf.square(forward(x) - y))
train = tf.train.AdamOptimizer(0.1).minimize(loss)
data = np.random.rand(35, 3)
target = data.sum(1, keepdims=True)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for i in [*range(0, 35, 10)] * 3:
        feed = {x: data[i : i + 10], y: target[i : i + 10]}
        _, value = session.run([train, loss], feed)
    results.save(session.run([w, b]), loss=value)
