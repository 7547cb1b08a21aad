"""A graph of TensorFlow 1 on several ranks, which average their gradients in each step.

rdma-transport run --horovod -n 2 -- python examples/horovod/session.py
"""

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
STEPS, BATCH, INPUTS, HIDDEN = 40, 64, 100, 128  # the batch of all ranks together

hvd.init()
v1.disable_eager_execution()
config = v1.ConfigProto()
if tf.config.list_physical_devices("GPU"):
    config.gpu_options.visible_device_list = str(hvd.local_rank())

x = v1.placeholder(tf.float32, [None, INPUTS])
y = v1.placeholder(tf.float32, [None, 1])
start = v1.glorot_uniform_initializer(seed=3)
hidden = tf.tanh(x @ v1.get_variable("hidden", [INPUTS, HIDDEN], initializer=start))
guess = hidden @ v1.get_variable("out", [HIDDEN, 1], initializer=start)
loss = tf.reduce_mean(tf.square(guess - y))
optimizer = hvd.DistributedOptimizer(v1.train.MomentumOptimizer(0.01, 0.9))
step = v1.train.get_or_create_global_step()
train = optimizer.minimize(loss, global_step=step)
mean = hvd.allreduce(loss, name="loss")

random = np.random.default_rng(1)
teacher = np.random.default_rng(42).normal(size=(INPUTS, 1)).astype(np.float32) / 10
losses = []
hooks = [hvd.BroadcastGlobalVariablesHook(0), v1.train.StopAtStepHook(last_step=STEPS)]
with v1.train.MonitoredTrainingSession(config=config, hooks=hooks) as session:
    while not session.should_stop():
        batch = random.normal(size=(BATCH, INPUTS)).astype(np.float32)[hvd.rank() :: hvd.size()]
        value, _ = session.run([mean, train], {x: batch, y: batch @ teacher})
        losses.append(float(value))
if hvd.rank() == 0:
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
