"""Functions and graphs that were built with three ranks, on the two that are left.

The process with number 0 is killed: the others have other ranks then.
"""

import os
import signal

SLOT, SLOTS = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])

import horovod.tensorflow as hvd  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
import tensorflow as tf  # noqa: E402

hvd.init()


@tf.function
def all_of_them(mine: tf.Tensor) -> dict[str, tf.Tensor]:
    """Everything whose result depends on the number of ranks, or on this one."""
    rows = tf.ones([2, 3]) * mine
    indices = tf.constant([0, 1], tf.int64)
    slices = tf.IndexedSlices(rows, indices, tf.constant([4, 3], tf.int64))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(rows)
        gathered = tf.reduce_sum(hvd.allgather(rows) ** 2)
        received = tf.reduce_sum(hvd.broadcast(rows, root_rank=0) ** 2)
        parts = tf.reduce_sum(hvd.reducescatter(tf.ones([6, 3]) * mine, op=hvd.Average))
        scattered = tf.reduce_sum(hvd.reducescatter(tf.tile(rows, [3, 1]), op=hvd.Average))
    return {
        "size": hvd.size_op(),
        "rank": hvd.rank_op(),
        "local": hvd.local_rank_op() + hvd.local_size_op(),
        "mean": hvd.allreduce(mine),
        "slices": tf.convert_to_tensor(hvd.allreduce(slices))[0, 0],
        "of gathered": tape.gradient(gathered, rows)[0, 0],
        "of received": tape.gradient(received, rows)[0, 0],
        "parts": parts,
        "of scattered": tape.gradient(scattered, rows)[0, 0],
    }


@tf.function
def with_local(mine: tf.Tensor) -> tf.Tensor:
    """Return the gradient of a variable that ranks do not share."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(own * mine)
    tape = hvd.DistributedGradientTape(tape)
    tape.register_local_source(own)
    return tape.gradient(loss, own)


def check() -> None:
    rank, size = hvd.rank(), hvd.size()
    mine, total = rank + 1.0, sum(range(1, size + 1))
    found = {name: float(each) for name, each in all_of_them(tf.constant(mine)).items()}
    expected = {
        "size": size,
        "rank": rank,
        "local": SLOT + SLOTS,
        "mean": total / size,
        "slices": total / size,
        # Horovod: the mean of the ranks' gradients, of what is gathered or broadcast.
        "of gathered": 2 * mine,
        "of received": 2.0 if rank == 0 else 0.0,
        "parts": total / size * 3 * (6 // size),
        "of scattered": 3.0,
    }
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)
    np.testing.assert_allclose(with_local(tf.constant(mine)), mine / size, rtol=1e-6)
    assert all_of_them.experimental_get_tracing_count() == 1


own = tf.Variable(1.0)
with pytest.raises(NotImplementedError, match="elastic jobs"):
    hvd.add_process_set([0])
with pytest.raises(ValueError, match="elastic jobs"):
    hvd.DistributedGradientTape(tf.GradientTape(), compression=hvd.Compression.factors)._reduction(
        [tf.ones([2])], [own]
    )

# A graph of version 1 and its session, which are used again after the loss.
with tf.Graph().as_default():
    v1 = tf.compat.v1
    weights = v1.get_variable("weights", initializer=tf.fill([3], float(SLOT)))
    given = v1.placeholder(tf.float32, [3])
    step = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0)).minimize(
        tf.reduce_sum(weights * given)
    )
    session = v1.Session()
    session.run(v1.global_variables_initializer())
    in_graph = hvd.elastic.TensorFlowState(session=session, steps=0)


@hvd.elastic.run
def train_session(state: hvd.elastic.State) -> None:
    mine = np.full(3, hvd.rank() + 1.0)
    if hvd.size() == 3:
        session.run(step, {given: mine})
        state.steps = 1
        state.commit()
        check()
        if SLOT == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    assert state.steps == 1
    session.run(step, {given: mine})  # fails with three ranks


train_session(in_graph)
assert hvd.size() == 2
np.testing.assert_allclose(session.run(weights), np.full(3, 0.0 - 2.0 - 1.5))
check()


# Variables and objects, and what is not committed: two ranks are left.
variable, state = tf.Variable(7.0 + SLOT), None
state = hvd.elastic.TensorFlowState([variable], names=["a"], calls=0)


@hvd.elastic.run
def train(state: hvd.elastic.State) -> None:
    if state.calls == 0:
        assert variable.numpy() == 8.0, variable  # that of rank 0, which has SLOT 1
        state.names.append("b")
        state.calls = 1
        state.commit()
        variable.assign(100.0)
        state.names.append("not committed")
        raise hvd.elastic.HorovodInternalError("on both ranks")
    assert (variable.numpy(), state.names) == (8.0, ["a", "b"])


train(state)
check()
print("done", flush=True)
