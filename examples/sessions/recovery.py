"""Training that outlives its tasks: kill the worker or the parameter server, and start it again.

A new worker goes on from the last checkpoint; one whose parameter server died does so by itself.

python -m examples.launch --job ps=1 --job worker=1 examples/sessions/recovery.py DIRECTORY [STEPS]
"""

import sys

import tensorflow as tf

v1 = tf.compat.v1
BATCH, INPUTS, HIDDEN = 32, 64, 128
directory, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 500

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
cluster = resolver.cluster_spec()
server = tf.distribute.Server(
    cluster, resolver.task_type, resolver.task_id, protocol=resolver.rpc_layer
)
if resolver.task_type == "ps":
    server.join()

v1.disable_eager_execution()
with v1.device(v1.train.replica_device_setter(cluster=cluster)):
    global_step = v1.train.get_or_create_global_step()
    # Made of the step, the batch is the same when a step is made again.
    x = tf.random.stateless_normal([BATCH, INPUTS], tf.stack([global_step, 7]))
    y = x[:, :1] - x[:, 1:2]
    start = v1.glorot_uniform_initializer(seed=8)
    hidden = tf.tanh(x @ v1.get_variable("hidden", [INPUTS, HIDDEN], initializer=start))
    guess = hidden @ v1.get_variable("out", [HIDDEN, 1], initializer=start)
    loss = tf.reduce_mean(tf.square(guess - y))
    train = v1.train.AdamOptimizer(0.001).minimize(loss, global_step=global_step)
    with tf.control_dependencies([train]):
        made = global_step.read_value()

with v1.train.MonitoredTrainingSession(
    server.target,
    checkpoint_dir=directory,
    save_checkpoint_secs=None,
    save_checkpoint_steps=20,
    save_summaries_steps=None,
    log_step_count_steps=None,
) as session:
    step = 0
    while step < steps:
        value, step = session.run([loss, made])
        print(f"step {step}: loss {value:.4f}")
print(f"last loss {value:.9g}")
