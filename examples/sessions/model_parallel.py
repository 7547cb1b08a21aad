"""One network over three tasks: each holds a layer and its parameters, activations go between them.

python -m examples.launch --job worker=3 --until worker:0 examples/sessions/model_parallel.py
"""

from itertools import pairwise

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
STEPS, BATCH, WIDTHS = 20, 64, [64, 256, 256, 1]

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
server = tf.distribute.Server(
    resolver.cluster_spec(), resolver.task_type, resolver.task_id, protocol=resolver.rpc_layer
)
if resolver.task_id != 0:
    server.join()

v1.disable_eager_execution()
x = v1.placeholder(tf.float32, [BATCH, WIDTHS[0]])
y = v1.placeholder(tf.float32, [BATCH, 1])
activations = x
for layer, (width, following) in enumerate(pairwise(WIDTHS)):
    with tf.device(f"/job:worker/task:{layer}"):
        start = v1.glorot_uniform_initializer(seed=layer)
        weights = v1.get_variable(f"weights{layer}", [width, following], initializer=start)
        bias = v1.get_variable(f"bias{layer}", [following], initializer=v1.zeros_initializer())
        activations = tf.matmul(activations, weights) + bias
        if layer < len(WIDTHS) - 2:
            activations = tf.nn.relu(activations)
with tf.device("/job:worker/task:2"):
    loss = tf.reduce_mean(tf.square(activations - y))
    optimizer = v1.train.MomentumOptimizer(0.01, 0.9)
    # Gradients are computed, and parameters updated, in the task of their layer.
    train = optimizer.minimize(loss, colocate_gradients_with_ops=True)

random = np.random.default_rng(1)
teacher = random.normal(size=(WIDTHS[0], 1)).astype(np.float32) / 8
losses = []
with v1.Session(server.target) as session:
    session.run(v1.global_variables_initializer())
    for step in range(STEPS):
        batch = random.normal(size=(BATCH, WIDTHS[0])).astype(np.float32)
        value, _ = session.run([loss, train], {x: batch, y: np.abs(batch @ teacher)})
        losses.append(float(value))
        if step % 5 == 0:
            print(f"step {step}: loss {value:.4f}")
print("losses " + " ".join(f"{value:.9g}" for value in losses))
