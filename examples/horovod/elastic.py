"""A training that goes on when ranks are lost, and takes in those that replace them.

rdma-transport run --elastic --min 1 --max 2 --horovod -- python examples/horovod/elastic.py
"""

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

FEATURES, HIDDEN, STEPS, PER_COMMIT = 64, 128, 40, 5
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


# Rank and size change: a function does not use them, unless it is traced anew.
@tf.function(input_signature=[tf.TensorSpec([None, FEATURES])])
def train_step(points: tf.Tensor) -> tf.Tensor:
    """Learn the norm of points."""
    with tf.GradientTape() as tape:
        guess = model(points, training=True)
        loss = tf.reduce_mean((guess - tf.norm(points, axis=1, keepdims=True)) ** 2)
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return hvd.allreduce(loss, name="loss")


@hvd.elastic.run
def train(state: hvd.elastic.TensorFlowKerasState) -> None:
    """Go on from the step of the state, which is the same on all ranks."""
    while state.step < STEPS:
        points = tf.random.stateless_normal([BATCH, FEATURES], [state.step, 3])
        loss = float(train_step(points[hvd.rank() :: hvd.size()]))
        state.step += 1
        state.losses.append(loss)
        if state.step % PER_COMMIT == 0:
            state.commit()


state = hvd.elastic.TensorFlowKerasState(model, optimizer, step=0, losses=[])
train(state)
if hvd.rank() == 0:
    print(f"loss {state.losses[0]:.4f} -> {state.losses[-1]:.4f}")
