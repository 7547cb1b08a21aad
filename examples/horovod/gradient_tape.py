"""A training loop of one's own on several ranks, which average their gradients in each step.

rdma-transport run --horovod -n 2 -- python examples/horovod/gradient_tape.py
"""

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

FEATURES, HIDDEN, STEPS = 64, 128, 40
BATCH = 32  # of all ranks together

hvd.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

keras.utils.set_random_seed(hvd.rank())
model = keras.Sequential(
    [keras.Input([FEATURES]), keras.layers.Dense(HIDDEN, activation="relu"), keras.layers.Dense(1)]
)
optimizer = keras.optimizers.SGD(0.005)
optimizer.build(model.trainable_variables)


@tf.function
def train(number: tf.Tensor) -> tf.Tensor:
    """Learn the norm of this rank's share of the points."""
    points = tf.random.stateless_normal([BATCH, FEATURES], tf.stack([number, 3]))
    points = points[hvd.rank() :: hvd.size()]
    with tf.GradientTape() as tape:
        guess = model(points, training=True)
        loss = tf.reduce_mean((guess - tf.norm(points, axis=1, keepdims=True)) ** 2)
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return hvd.allreduce(loss, name="loss")


hvd.broadcast_variables(model.variables, root_rank=0)  # all begin as rank 0 does
hvd.broadcast_variables(optimizer.variables, root_rank=0)
losses = [float(train(tf.constant(number))) for number in range(STEPS)]
if hvd.rank() == 0:
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
