"""Between-graph replication: each worker its own graph, kept in step by SyncReplicasOptimizer.

python -m examples.launch --job ps=1 --job worker=2 examples/sessions/synchronous.py
"""

import threading
import time

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
STEPS, BATCH, INPUTS, HIDDEN = 15, 64, 100, 128

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
cluster, worker = resolver.cluster_spec(), resolver.task_id
server = tf.distribute.Server(cluster, resolver.task_type, worker, protocol=resolver.rpc_layer)
if resolver.task_type == "ps":
    server.join()
workers = cluster.num_tasks("worker")

v1.disable_eager_execution()
here = f"/job:worker/task:{worker}"
with v1.device(v1.train.replica_device_setter(cluster=cluster, worker_device=here)):
    step = v1.train.get_or_create_global_step()
    x = v1.placeholder(tf.float32, [BATCH, INPUTS])
    y = v1.placeholder(tf.float32, [BATCH, 1])
    start = v1.glorot_uniform_initializer(seed=3)
    hidden = tf.tanh(x @ v1.get_variable("hidden", [INPUTS, HIDDEN], initializer=start))
    guess = hidden @ v1.get_variable("out", [HIDDEN, 1], initializer=start)
    loss = tf.reduce_mean(tf.square(guess - y))
    optimizer = v1.train.SyncReplicasOptimizer(
        v1.train.MomentumOptimizer(0.01, 0.9),
        replicas_to_aggregate=workers,
        total_num_replicas=workers,
    )
    train = optimizer.minimize(loss, global_step=step)

config = v1.ConfigProto(device_filters=["/job:ps", here])
if worker != 0:  # the session below would look for the chief's variables every 30 seconds only
    missing = v1.report_uninitialized_variables(v1.global_variables())
    with v1.Session(server.target, config=config) as session:
        while session.run(missing).size:
            time.sleep(0.1)


def quiet(failure: threading.ExceptHookArgs) -> None:
    """Expect that the end of the session cancels the thread that gathers the next gradients."""
    if not isinstance(failure.exc_value, tf.errors.CancelledError):
        threading.__excepthook__(failure)


threading.excepthook = quiet

# No tokens to begin with: nobody is a step ahead of the others.
synchronize = optimizer.make_session_run_hook(is_chief=worker == 0, num_tokens=0)
random = np.random.default_rng(worker)
teacher = np.random.default_rng(42).normal(size=(INPUTS, 1)).astype(np.float32) / 10
losses = []
with v1.train.MonitoredTrainingSession(
    server.target,
    is_chief=worker == 0,
    config=config,
    hooks=[synchronize, v1.train.StopAtStepHook(last_step=STEPS)],
    stop_grace_period_secs=1,  # the thread that gathers the next gradients waits forever
) as session:
    while not session.should_stop():
        batch = random.normal(size=(BATCH, INPUTS)).astype(np.float32)
        value, _ = session.run([loss, train], {x: batch, y: batch @ teacher})
        losses.append(float(value))
        print(f"worker {worker}: loss {value:.4f}")
    print("losses " + " ".join(f"{value:.9g}" for value in losses))
