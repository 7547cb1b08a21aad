"""Version 1: sessions, hooks, and optimizers that each rank builds for itself."""

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as tf1
from data import BATCH, STEPS, data_of

from rdma_transport.tensorflow import speeds

tf1.disable_v2_behavior()
hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()


def train(rank: int, kind: str, passes: int = 1, average: bool = True) -> np.ndarray:
    """Train a linear model in float64, and return its weights; rank -1: alone, on all examples."""
    x, y = (part.astype(np.float64) for part in data_of(rank, SIZE))
    batch = BATCH if rank >= 0 else BATCH * SIZE * passes
    with tf.Graph().as_default():
        inputs = tf1.placeholder(tf.float64, (None, 5))
        targets = tf1.placeholder(tf.float64, (None, 1))
        # Each rank begins elsewhere, unless the variables of rank 0 are broadcast.
        start = np.full((5, 1), max(rank, 0) + 1.0)
        weights = tf1.get_variable("weights", initializer=start)
        loss = tf.reduce_mean((inputs @ weights - targets) ** 2)
        optimizer = {
            "sgd": lambda: tf1.train.GradientDescentOptimizer(0.05),
            "adam": lambda: tf1.train.AdamOptimizer(0.05),
        }[kind]()
        if rank >= 0:
            optimizer = hvd.DistributedOptimizer(
                optimizer, backward_passes_per_step=passes, average_aggregated_gradients=average
            )
        step = tf1.train.get_or_create_global_step()
        pairs = optimizer.compute_gradients(loss)
        clipped = [(tf.clip_by_norm(gradient, 2.0), each) for gradient, each in pairs]
        training = optimizer.apply_gradients(clipped, global_step=step)
        hooks = [hvd.BroadcastGlobalVariablesHook(0)] if rank >= 0 else []
        with tf1.train.MonitoredTrainingSession(hooks=hooks) as session:
            for first in range(0, len(x), batch):
                part = slice(first, first + batch)
                session.run(training, {inputs: x[part], targets: y[part]})
            if rank >= 0:
                assert session.run(step) == STEPS, session.run(step)
            return session.run(weights)


for kind in ("sgd", "adam"):
    for passes in (1, 2):
        found, expected = train(RANK, kind, passes), train(-1, kind, passes)
        np.testing.assert_allclose(found, expected, rtol=1e-10)
        assert len({part.tobytes() for part in hvd.allgather_object(found)}) == 1

# A plain session, Keras' functions, and names that are used twice in a graph.
with tf.Graph().as_default(), tf1.Session() as session:
    variables = [tf1.get_variable(f"v{i}", initializer=float(RANK * 10 + i)) for i in range(3)]
    total = [hvd.allreduce(each, op=hvd.Sum, name="twice") for each in variables]
    rows = hvd.allgather(tf.fill([RANK + 1, 2], RANK))
    indices = tf.constant([RANK, 3], tf.int64)
    sparse = tf.IndexedSlices(tf.ones([2, 2]), indices, tf.constant([4, 2], tf.int64))
    dense = tf.convert_to_tensor(hvd.allreduce(sparse))
    session.run(tf1.global_variables_initializer())
    assert session.run(total) == [10.0, 12.0, 14.0]
    assert session.run(rows).tolist() == [[0, 0], [1, 1], [1, 1]]
    assert session.run(dense)[:, 0].tolist() == [0.5, 0.5, 0.0, 1.0]
    session.run(hvd.broadcast_global_variables(1))
    assert session.run(variables) == [10.0, 11.0, 12.0]
    assert hvd_keras.allreduce(float(RANK)) == 0.5
    assert hvd.broadcast_object(RANK, 1) == 1
    # Ranks that differ are told so.
    with pytest.raises(tf.errors.FailedPreconditionError, match="rank 1"):
        session.run(hvd.allreduce(tf.ones([RANK + 1])))
speeds_found = speeds.measured()
assert speeds_found is not None
assert min(vars(speeds_found).values()) > 0
print("done")
