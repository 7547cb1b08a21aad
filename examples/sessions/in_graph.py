"""In-graph replication: one client's graph holds the parameters and two workers, synchronously.

python -m examples.launch --job ps=1 --job worker=2 --until worker:0 examples/sessions/in_graph.py
"""

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
STEPS, BATCH, PIXELS, HIDDEN, CLASSES = 20, 32, 64, 256, 10

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
server = tf.distribute.Server(
    resolver.cluster_spec(), resolver.task_type, resolver.task_id, protocol=resolver.rpc_layer
)
if (resolver.task_type, resolver.task_id) != ("worker", 0):
    server.join()


def inputs(worker: int) -> tuple[tf.Tensor, tf.Tensor]:
    """A worker's endless batches of images and labels."""
    random = np.random.default_rng(worker)
    labels = random.integers(0, CLASSES, 512)
    prototypes = np.random.default_rng(99).normal(size=(CLASSES, PIXELS))
    images = (prototypes[labels] + random.normal(size=(512, PIXELS))).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((images, labels)).repeat().batch(BATCH, True)
    return v1.data.make_one_shot_iterator(data).get_next()


with tf.Graph().as_default() as graph:
    with tf.device("/job:ps/task:0"):
        start = v1.variance_scaling_initializer(seed=5)
        weights = [
            v1.get_variable("hidden", [PIXELS, HIDDEN], initializer=start),
            v1.get_variable("out", [HIDDEN, CLASSES], initializer=start),
        ]
        optimizer = v1.train.AdamOptimizer(0.01)
    towers = []
    for worker in range(2):
        with tf.device(f"/job:worker/task:{worker}"):
            images, labels = inputs(worker)
            logits = tf.nn.relu(images @ weights[0]) @ weights[1]
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            )
            towers.append((loss, tf.gradients(loss, weights)))
    with tf.device("/job:ps/task:0"):
        losses, gradients = zip(*towers, strict=True)
        averages = [tf.add_n(each) / len(towers) for each in zip(*gradients, strict=True)]
        train = optimizer.apply_gradients(zip(averages, weights, strict=True))
        mean_loss = tf.add_n(losses) / len(towers)
    initialize = v1.global_variables_initializer()

with v1.Session(server.target, graph=graph) as session:
    session.run(initialize)
    history = []
    for step in range(STEPS):
        loss, _ = session.run([mean_loss, train])
        history.append(float(loss))
        if step % 5 == 0:
            print(f"step {step}: loss {loss:.4f}")
print("losses " + " ".join(f"{loss:.9g}" for loss in history))
