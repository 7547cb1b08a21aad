"""Version 1: first weights that depend on the process."""

import os

import tensorflow.compat.v1 as tf

from rdma_transport.tensorflow import parallel

tf.disable_eager_execution()
w = tf.get_variable("w", [4, 1])
scale = tf.get_variable("scale", initializer=os.getpid() % 1000 / 1000.0)
x = tf.random.stateless_uniform([8, 4], [1, 2])
loss = tf.reduce_sum(parallel(lambda x: tf.matmul(x, w) * scale)(x))
train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
with tf.train.MonitoredTrainingSession() as session:
    for _ in range(3):
        session.run(train)
