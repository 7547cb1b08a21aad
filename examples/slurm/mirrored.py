"""Mirrored workers as a job of Slurm, which goes on from its last checkpoint when it is requeued.

Every task runs this script, in a folder that all nodes share: srun python mirrored.py
"""

import argparse

import tensorflow as tf

FEATURES, HIDDEN, BATCH = 64, 128, 32
EVERY = 50  # steps from one checkpoint to the next

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--steps", type=int, default=200)
arguments.add_argument("--protocol", default="rdma")
options = arguments.parse_args()

resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
    port_base=8888, rpc_layer=options.protocol,
    gpus_per_node=1, gpus_per_task=1, auto_set_gpu=False)  # fmt: skip
strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
worker = resolver.task_id

with strategy.scope():
    done = tf.Variable(0, dtype=tf.int64)
    start = tf.random.stateless_normal([FEATURES, HIDDEN], [3, 5]) / 8
    hidden = tf.Variable(start)
    out = tf.Variable(tf.ones([HIDDEN, 1]) / HIDDEN)


def replica_step() -> tf.Tensor:
    """One step on this worker's points, whose norm is to be learned."""
    x = tf.random.stateless_normal([BATCH, FEATURES], tf.stack([done, worker]))
    with tf.GradientTape() as tape:
        guess = tf.nn.relu(x @ hidden) @ out
        loss = tf.reduce_mean((guess - tf.norm(x, axis=1, keepdims=True)) ** 2)
    context = tf.distribute.get_replica_context()
    gradients = context.all_reduce("mean", tape.gradient(loss, [hidden, out]))
    for variable, gradient in zip((hidden, out), gradients, strict=True):
        variable.assign_sub(0.002 * gradient)
    done.assign_add(1)
    return loss


@tf.function
def step() -> tf.Tensor:
    return strategy.reduce("mean", strategy.run(replica_step), axis=None)


# All workers save, but each has a folder of its own, and all restore what the first one saved.
checkpoint = tf.train.Checkpoint(done=done, hidden=hidden, out=out)
folder = "checkpoints" if worker == 0 else f"checkpoints/worker{worker}"
manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=2)
if latest := tf.train.latest_checkpoint("checkpoints"):
    checkpoint.restore(latest).assert_consumed()
print(f"starting at step {int(done.numpy())}", flush=True)

while int(done.numpy()) < options.steps:
    loss = step()
    if int(done.numpy()) % EVERY == 0:
        manager.save()
        if worker == 0:
            print(f"step {int(done.numpy())} loss {float(loss):.9g}", flush=True)
