"""The operations on three ranks, their gradients, and process sets."""

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf
from mpi4py import MPI

part = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank % 2, MPI.COMM_WORLD.rank)
split = hvd.ProcessSet(part)
hvd.init(MPI.COMM_WORLD, process_sets=[split])
assert hvd.global_process_set.mpi_comm is MPI.COMM_WORLD
assert split.mpi_comm is part
assert (split.ranks, split.process_set_id) == (([1], 2) if hvd.rank() == 1 else ([0, 2], 1))
first, second = hvd.ProcessSet([0, 2]), hvd.ProcessSet([1])
for sets in (
    [first, hvd.ProcessSet([2, 0])],
    [hvd.ProcessSet(MPI.COMM_WORLD)],
    [hvd.ProcessSet([])],
):
    with pytest.raises(ValueError, match="process set"):
        hvd.init(process_sets=sets)
hvd.init(process_sets=[first, second])
RANK, SIZE = hvd.rank(), hvd.size()
assert (SIZE, hvd.local_rank(), hvd.local_size()) == (3, RANK, 3)
assert (hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()) == (0, 1, True)
assert int(hvd.rank_op()) == RANK
assert int(hvd.size_op()) == 3


def equal(found: object, expected: object) -> None:
    np.testing.assert_allclose(np.asarray(found, np.float64), np.asarray(expected, np.float64))


mine = tf.constant([1.0, 2.0]) * (RANK + 1)
for allreduce in (hvd.allreduce, tf.function(hvd.allreduce)):
    equal(allreduce(mine), [2, 4])
    equal(allreduce(mine, op=hvd.Sum), [6, 12])
    equal(allreduce(mine, average=False), [6, 12])
    equal(allreduce(mine, op=hvd.Min), [1, 2])
    equal(allreduce(mine, op=hvd.Max), [3, 6])
    equal(allreduce(mine, op=hvd.Product), [6, 48])
    equal(allreduce(mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0), [12, 24])
    equal(allreduce(mine, compression=hvd.Compression.fp16), [2, 4])
both = hvd.grouped_allreduce([mine, tf.constant([RANK]), mine[:1]], op=hvd.Sum)
assert [each.dtype for each in both] == [tf.float32, tf.int32, tf.float32]
for found, expected in zip(both, ([6, 12], [3], [6]), strict=True):
    equal(found, expected)
equal(hvd.allgather(tf.fill([RANK, 1], RANK)), [[1], [2], [2]])
equal(hvd.grouped_allgather([mine[:1], mine])[1], [1, 2, 2, 4, 3, 6])
equal(hvd.broadcast(mine, 2), [3, 6])
equal(hvd.reducescatter(tf.range(4.0), op=hvd.Sum), [[0, 3], [6], [9]][RANK])
equal(hvd.alltoall(tf.range(3) + 10 * RANK), [RANK, 10 + RANK, 20 + RANK])
rows, received = hvd.alltoall(tf.fill([RANK + 1], RANK), splits=[0, 0, RANK + 1])
equal(rows, [0, 1, 1, 2, 2, 2] if RANK == 2 else [])
equal(received, [1, 2, 3] if RANK == 2 else [0, 0, 0])
variable = tf.Variable(mine)
equal(hvd.broadcast_([variable], 1)[0], [2, 4])
equal(variable, [2, 4])

with tf.GradientTape(persistent=True) as tape:
    tape.watch(mine)
    total = hvd.allreduce(mine, op=hvd.Sum)
    rows = hvd.allgather(mine)
    copy = hvd.broadcast(mine, 1)
    parts = hvd.reducescatter(tf.concat([mine, mine[:1]], 0))
equal(tape.gradient(total, mine, tf.constant([1.0, 2.0])), [3, 6])
equal(tape.gradient(rows, mine, tf.range(6.0) * (RANK + 1)), tf.range(2.0 * RANK, 2 * RANK + 2) * 2)
equal(tape.gradient(copy, mine, mine), [2, 4] if RANK == 1 else [0, 0])
equal(tape.gradient(parts, mine), [2, 1])

# Process sets.
group = second if RANK == 1 else first
assert group.included()
assert (group.rank(), group.size()) == ((0, 1) if RANK == 1 else (RANK // 2, 2))
equal(hvd.allreduce(mine, process_set=group), [2, 4])
equal(hvd.broadcast(mine, group.ranks[-1], process_set=group), mine if RANK == 1 else [3, 6])
assert hvd.allgather_object(RANK, process_set=group) == group.ranks
assert hvd.broadcast_object(RANK, group.ranks[-1], process_set=group) == group.ranks[-1]
third = hvd.add_process_set([0, 1])
assert third.process_set_id == 3
if RANK < 2:
    equal(hvd.allreduce(mine, process_set=third), [1.5, 3])
else:
    with pytest.raises(tf.errors.InvalidArgumentError, match="does not belong"):
        hvd.allreduce(mine, process_set=third)
    with pytest.raises(ValueError, match="does not belong"):
        third.rank()
assert hvd.remove_process_set(third)
assert third.process_set_id is None
assert not hvd.remove_process_set(hvd.global_process_set)
with pytest.raises(ValueError, match="already"):
    hvd.add_process_set([2, 1, 0])
with tf.GradientTape() as tape:
    tape.watch(mine)
    loss = tf.reduce_sum(mine * mine)
gradient = hvd.DistributedGradientTape(tape, process_set=first).gradient(loss, mine)
equal(gradient, [4, 8])
variable = tf.Variable(mine)
optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), process_set=group)
optimizer.apply_gradients([(mine, variable)])
equal(variable, mine - [2, 4])

# A rank without more data takes part with zeros.
if RANK:
    equal(hvd.allreduce(mine, op=hvd.Sum, name="more"), [5, 10])
last = int(hvd.join())
assert hvd.allgather_object(last) == [last] * SIZE
print("done")
