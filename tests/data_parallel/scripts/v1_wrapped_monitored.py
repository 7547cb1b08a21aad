"""Version 1: MonitoredTrainingSession, tf.data, and a function that is wrapped."""

import os

import numpy as np
import results
import tensorflow.compat.v1 as tf

from rdma_transport.tensorflow import parallel

tf.disable_eager_execution()
tf.set_random_seed(57)
data = np.random.RandomState(57).rand(32, 4).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((data, data.sum(1, keepdims=True))).repeat().batch(8)
x, y = tf.data.make_one_shot_iterator(dataset).get_next()
w = tf.get_variable("w", [4, 1])
loss = tf.losses.mean_squared_error(y, parallel(lambda x: tf.matmul(x, w))(x))
step = tf.train.get_or_create_global_step()
optimizer = tf.train.GradientDescentOptimizer(0.1)
train = optimizer.apply_gradients(optimizer.compute_gradients(loss), global_step=step)
hooks = [tf.train.StopAtStepHook(last_step=12), tf.train.NanTensorHook(loss)]
values = []
folder = os.path.join(os.environ["FOLDER"], os.environ.get("RANK", "0"))
with tf.train.MonitoredTrainingSession(hooks=hooks, checkpoint_dir=folder) as session:
    while not session.should_stop():
        _, value, last = session.run([train, loss, w])
        values.append(value)
results.save([last], losses=values)
