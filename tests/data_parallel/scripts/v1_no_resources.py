"""Version 1: a wrapped function with variables that are no resources."""

import tensorflow.compat.v1 as tf

from rdma_transport.tensorflow import parallel

tf.disable_v2_behavior()
w = tf.get_variable("w", [3, 1])
b = tf.get_variable("b", [1])
loss = tf.reduce_mean(parallel(lambda x: tf.matmul(x, w))(tf.ones([6, 3])) + b)
train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    session.run(train)
