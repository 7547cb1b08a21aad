"""Version 1: a weight that one rank changes between two steps."""

import os

import numpy as np
import tensorflow.compat.v1 as tf

from rdma_transport.tensorflow import parallel

tf.disable_v2_behavior()
tf.enable_resource_variables()
x = tf.placeholder(tf.float32, [None, 3])
w = tf.get_variable("w", [3, 1])
b = tf.get_variable("b", [1], initializer=tf.zeros_initializer())
loss = tf.reduce_mean(tf.square(parallel(lambda x: tf.matmul(x, w) + b)(x)))
train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
drift = tf.assign_add(b, [float(os.environ["RANK"])])
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for step in range(12):
        session.run(train, {x: np.ones([6, 3])})
        if step == 5:
            session.run(drift)
