"""What programs do that a careless imitation of Horovod does not stand."""

import horovod
import horovod.tensorflow as hvd
import mpi4py.MPI
import numpy as np
import pytest
import tensorflow as tf
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.functions import broadcast_variables
from horovod.tensorflow.mpi_ops import Sum, _allreduce
from mpi4py import MPI

hvd.init()
hvd.init()
hvd.init(True)
RANK, SIZE = hvd.rank(), hvd.size()
assert hvd.is_initialized()
assert hvd.mpi_threads_supported()
assert not hvd.nccl_built()
assert horovod.__version__
assert Compression is hvd.Compression
assert (MPI.COMM_WORLD.rank, mpi4py.MPI.COMM_WORLD.size) == (RANK, SIZE)
# Devices are chosen after init().
tf.config.set_visible_devices([], "GPU")
tf.config.threading.set_inter_op_parallelism_threads(2)
assert int(_allreduce(tf.constant(1), op=Sum)) == SIZE

assert hvd.allreduce([], name="Barrier").shape == (0,)
variable = tf.Variable([1.0 + RANK])
assert hvd.allreduce(variable).numpy() == [1.5]
large = tf.Variable(tf.ones([200, 200]) * RANK)


@tf.function
def step(first: bool) -> tuple[tf.Tensor, tf.Tensor]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable * (RANK + 1)) + tf.reduce_sum(large * (RANK + 1))
    tape = hvd.DistributedGradientTape(tape, compression=hvd.Compression.fp16)
    gradients = tape.gradient(loss, [variable, large])
    optimizer.apply_gradients(zip(gradients, [variable, large], strict=True))
    if first:
        hvd.broadcast_variables([variable, large], root_rank=0)
        hvd.broadcast_variables(optimizer.variables(), root_rank=0)
    return hvd.allreduce(loss), hvd.allreduce(tf.cast(RANK, tf.float32))


# A tape and an optimizer that are distributed: averages of equal values.
optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.5, momentum=0.5))
optimizer.build([variable, large])
loss, mean = step(True)
assert mean.numpy() == 0.5
np.testing.assert_allclose(variable, [1 - 0.5 * 1.5])
np.testing.assert_allclose(large, np.full((200, 200), -0.75))
step(False)
assert len({part.tobytes() for part in hvd.allgather_object(large.numpy())}) == 1

# Two tapes in a step of eager code, sources in a dictionary, and one that is not used.
other = tf.Variable(2.0)
with tf.GradientTape() as one, tf.GradientTape() as two:
    loss = variable[0] * 3.0 * RANK
    second = tf.gather(large, [RANK])[0, 0]
one, two = hvd.DistributedGradientTape(one), hvd.DistributedGradientTape(two, op=hvd.Sum)
gradients = one.gradient(loss, {"a": variable, "b": other})
assert gradients["a"].numpy() == [1.5]
assert gradients["b"] is None
(slices,) = two.gradient(second, [large])
assert isinstance(slices, tf.IndexedSlices)
assert tf.reduce_sum(tf.convert_to_tensor(slices)).numpy() == 2.0

# Rank 0 alone validates and saves.
if RANK == 0:
    assert float(variable[0]) < 1
broadcast_variables([variable], 1)
assert hvd.broadcast_object({"epoch": RANK}, root_rank=1) == {"epoch": 1}

# What is not there says so, with its name.
for use, name in (
    (lambda: hvd.allreduce(1.0, op=hvd.Adasum), "Adasum"),
    (lambda: hvd.start_timeline("x"), "start_timeline"),
    (lambda: horovod.run(print), "horovod.run"),
    (lambda: __import__("horovod.torch"), "horovod.torch"),
):
    with pytest.raises(NotImplementedError, match=name):
        use()
assert not hasattr(hvd, "no_such_name")
hvd.shutdown()
assert not hvd.is_initialized()
print("done")
