"""Version 1: MonitoredTrainingSession with hooks, and tf.data."""

import numpy as np
import results
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
tf.set_random_seed(57)
data = np.random.RandomState(57).rand(32, 4).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((data, data.sum(1, keepdims=True))).repeat().batch(8)
x, y = tf.data.make_one_shot_iterator(dataset).get_next()
w = tf.get_variable("w", [4, 1], use_resource=False)
loss = tf.losses.mean_squared_error(y, tf.matmul(x, w))
step = tf.train.get_or_create_global_step()
optimizer = tf.train.GradientDescentOptimizer(0.1)
train = optimizer.apply_gradients(optimizer.compute_gradients(loss), global_step=step)
hooks = [tf.train.StopAtStepHook(last_step=10), tf.train.NanTensorHook(loss)]
values = []
with tf.train.MonitoredTrainingSession(hooks=hooks) as session:
    while not session.should_stop():
        values.append(session.run([train, loss])[1])
results.save([], losses=values)
