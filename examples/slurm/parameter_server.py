"""A parameter server and two workers as a job of Slurm.

The first worker is the client of all. The other tasks serve until it has finished, so the job ends
by itself. With two tasks on the first node and one on the second:
srun --nodes=2 --ntasks=3 python parameter_server.py
"""

import argparse

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
BATCH, INPUTS, HIDDEN = 64, 100, 128

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--steps", type=int, default=20)
arguments.add_argument("--protocol", default="rdma")
options = arguments.parse_args()

resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
    {"ps": 1, "worker": 2}, port_base=8888, rpc_layer=options.protocol,
    gpus_per_node=2, gpus_per_task=1, auto_set_gpu=False)  # fmt: skip
cluster, (job, index) = resolver.cluster_spec(), resolver.get_task_info()
server = tf.distribute.Server(cluster, job, index, protocol=resolver.rpc_layer)
v1.disable_eager_execution()


def finished(task: str) -> tf.queue.FIFOQueue:
    """The queue by which a task learns that it may end."""
    with tf.device(task):
        return v1.FIFOQueue(1, tf.int32, [[]], shared_name="finished")


tasks = [f"/job:{name}/task:{n}" for name in cluster.jobs for n in range(cluster.num_tasks(name))]
own = f"/job:{job}/task:{index}"
client = "/job:worker/task:0"
if own != client:
    # Not the tasks that may start later than this one.
    config = v1.ConfigProto(device_filters=[own])
    with v1.Session(server.target, config=config) as session:
        session.run(finished(own).dequeue())
    raise SystemExit

with tf.device("/job:ps/task:0"):
    start = v1.glorot_uniform_initializer(seed=3)
    hidden = v1.get_variable("hidden", [INPUTS, HIDDEN], initializer=start)
    out = v1.get_variable("out", [HIDDEN, 1], initializer=start)
x = v1.placeholder(tf.float32, [BATCH, INPUTS])
y = v1.placeholder(tf.float32, [BATCH, 1])
losses, gradients = [], []
workers = cluster.num_tasks("worker")
for worker in range(workers):
    with tf.device(f"/job:worker/task:{worker}"):
        part = slice(worker, None, workers)
        guess = tf.tanh(x[part] @ hidden) @ out
        losses.append(tf.reduce_mean((guess - y[part]) ** 2))
        gradients.append(tf.gradients(losses[-1], [hidden, out]))
with tf.device("/job:ps/task:0"):
    loss = tf.add_n(losses)
    train = [
        variable.assign_sub(0.01 * tf.add_n(each), read_value=False)
        for variable, each in zip((hidden, out), zip(*gradients, strict=True), strict=True)
    ]
ends = [finished(task).enqueue(0) for task in tasks if task != client]

random = np.random.default_rng(7)
teacher = random.normal(size=(INPUTS, 1)).astype(np.float32) / 10
with v1.Session(server.target) as session:
    session.run(v1.global_variables_initializer())
    for step in range(options.steps):
        batch = random.normal(size=(BATCH, INPUTS)).astype(np.float32)
        value, _ = session.run([loss, train], {x: batch, y: batch @ teacher})
        print(f"step {step} loss {float(value):.9g}", flush=True)
    session.run(ends)
