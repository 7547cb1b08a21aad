"""Downpour SGD: workers train copies of their own, and exchange with the parameters now and then.

Each fetches the parameters every few steps and pushes what its gradients came to; nobody waits.

python -m examples.launch --job ps=1 --job worker=2 examples/sessions/downpour.py
"""

import time

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
ROUNDS, FETCH_EVERY, BATCH, INPUTS, OUTPUTS = 40, 5, 32, 100, 20

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
worker = resolver.task_id
server = tf.distribute.Server(
    resolver.cluster_spec(), resolver.task_type, worker, protocol=resolver.rpc_layer
)
if resolver.task_type == "ps":
    server.join()

v1.disable_eager_execution()
here = f"/job:worker/task:{worker}"
random = np.random.default_rng(worker)
teacher = np.random.default_rng(42).normal(size=(INPUTS, OUTPUTS)).astype(np.float32)

with tf.device("/job:ps/task:0"):
    shared = v1.get_variable("weights", [INPUTS, OUTPUTS], initializer=v1.zeros_initializer())
    v1.train.get_or_create_global_step()
with tf.device(here):
    local = v1.Variable(tf.zeros([INPUTS, OUTPUTS]), collections=["local_variables"])
    pending = v1.Variable(tf.zeros([INPUTS, OUTPUTS]), collections=["local_variables"])
    x = v1.placeholder(tf.float32, [BATCH, INPUTS])
    y = v1.placeholder(tf.float32, [BATCH, OUTPUTS])
    loss = tf.reduce_mean(tf.square(x @ local - y))
    (gradient,) = tf.gradients(loss, [local])
    learn = tf.group(local.assign_sub(gradient * 0.5), pending.assign_add(gradient))
    fetch = local.assign(shared)
push = v1.train.GradientDescentOptimizer(0.5).apply_gradients([(pending, shared)])
with tf.control_dependencies([push]), tf.device(here):
    push = pending.assign(tf.zeros_like(pending))

config = v1.ConfigProto(device_filters=["/job:ps", here])
if worker != 0:  # the session below would look for the chief's variables every 30 seconds only
    missing = v1.report_uninitialized_variables(v1.global_variables())
    with v1.Session(server.target, config=config) as session:
        while session.run(missing).size:
            time.sleep(0.1)

with v1.train.MonitoredTrainingSession(
    server.target, is_chief=worker == 0, config=config
) as session:
    for turn in range(ROUNDS):
        session.run(fetch)
        for _ in range(FETCH_EVERY):
            batch = random.normal(size=(BATCH, INPUTS)).astype(np.float32)
            value, _ = session.run([loss, learn], {x: batch, y: batch @ teacher})
        session.run(push)
        if turn % 10 == 0:
            print(f"worker {worker}, round {turn}: loss {value:.4f}")
print(f"last loss {value:.6f}")
