"""Eager TensorFlow on remote tasks: operations, variables and functions that cross tasks.

python -m examples.launch --job chief=1 --job worker=2 --until chief \
    examples/sessions/remote_eager.py
"""

import tensorflow as tf

STEPS, WIDTH = 8, 128
WORKERS = ["/job:worker/task:0", "/job:worker/task:1"]

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type == "worker":
    tf.distribute.Server(
        resolver.cluster_spec(), "worker", resolver.task_id, protocol=resolver.rpc_layer
    ).join()

tf.config.experimental_connect_to_cluster(
    resolver, job_name="chief", protocol=resolver.rpc_layer, make_master_device_default=False
)

# Operations, one by one: made in one task, used in the other.
with tf.device(WORKERS[0]):
    inputs = tf.random.stateless_normal([64, WIDTH], [1, 2])
    encoder = tf.Variable(tf.random.stateless_normal([WIDTH, WIDTH], [3, 4]) / WIDTH**0.5)
with tf.device(WORKERS[1]):
    decoder = tf.Variable(tf.random.stateless_normal([WIDTH, WIDTH], [5, 6]) / WIDTH**0.5)
    print("the inputs' spread, computed in the other task:", float(tf.math.reduce_std(inputs)))


@tf.function
def train(batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """A step of an autoencoder whose halves live in two tasks."""
    with tf.GradientTape() as tape:
        with tf.device(WORKERS[0]):
            code = tf.tanh(batch @ encoder)
        with tf.device(WORKERS[1]):
            loss = tf.reduce_mean(tf.square(code @ decoder - batch))
    for variable, gradient in zip(
        (encoder, decoder), tape.gradient(loss, (encoder, decoder)), strict=True
    ):
        with tf.device(WORKERS[1]):
            gradient = tf.debugging.check_numerics(gradient, "a gradient")
        variable.assign_sub(10.0 * gradient)
    with tf.device(WORKERS[1]):
        return loss, tf.strings.format("loss {}", loss)


losses = []
for _ in range(STEPS):
    loss, text = train(inputs)
    losses.append(float(loss))
    print(text.numpy().decode())

# An error of one task comes here, and ends what the others wait for. The cluster goes on.
try:
    train(inputs * float("nan"))
except tf.errors.InvalidArgumentError as error:
    print("a bad batch:", "a gradient : Tensor had NaN values" in error.message)
with tf.device(WORKERS[0]):
    difference = tf.reduce_sum(tf.abs(encoder - decoder))  # the decoder comes to task 0
print("losses " + " ".join(f"{value:.9g}" for value in [*losses, float(difference)]))
