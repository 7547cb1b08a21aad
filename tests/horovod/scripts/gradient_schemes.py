"""Gradients sent as the factors of products, or in half the bytes, in the same sums."""

import os

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf

from rdma_transport.tensorflow import speeds

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
INNER, LARGE = 24, 512
random = np.random.default_rng(0)
rows = [5, 9, 2]  # of the ranks
inputs = [random.normal(size=(each, INNER)).astype(np.float32) for each in rows]
shapes = (INNER, LARGE), (LARGE, 600)
weights = [random.normal(0, n**-0.5, (n, m)).astype(np.float32) for n, m in shapes]
DENSE, FACTORS = hvd.Compression.dense, hvd.Compression.factors


def gradients_of(function, x):
    """Of both matrices, of a matrix that is transposed, and of two biases that share theirs."""
    biases = [np.zeros(600, np.float32)] * 2
    variables = [tf.Variable(each) for each in [*weights, weights[1], *biases]]

    @tf.function(input_signature=[tf.TensorSpec([None, INNER])])
    def step(x):
        with tf.GradientTape() as tape:
            hidden = tf.nn.relu(x @ variables[0])
            shaped = tf.reshape(variables[1], [LARGE, 2, 300])  # as Keras's EinsumDense has it
            out = hidden @ tf.reshape(shaped, [LARGE, 600]) + (variables[3] + variables[4])
            back = tf.matmul(out, variables[2], transpose_b=True)
            loss = tf.reduce_sum(back**2) + tf.reduce_sum(out)
        return function(tape).gradient(loss, variables)

    found = step(tf.constant(x))
    nodes = list(step.get_concrete_function().graph.as_graph_def().node)
    return [each.numpy() for each in found], nodes


def distributed(compression, op=hvd.Sum):
    return lambda tape: hvd.DistributedGradientTape(tape, compression=compression, op=op)


def assert_alike(found, expected, tolerance=1e-4):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * np.abs(other).max())
    for each in found:
        everyones = hvd.allgather(tf.constant(each)[None]).numpy()
        assert all(np.array_equal(everyones[0], other) for other in everyones)  # equal bits


def gathers(nodes):
    return sum("AllGather" in node.op for node in nodes)


of_one, _ = gradients_of(lambda tape: tape, np.concatenate(inputs[:SIZE]))
dense, nodes = gradients_of(distributed(DENSE), inputs[RANK])
assert gathers(nodes) == 0
assert_alike(dense, of_one)
found, nodes = gradients_of(distributed(FACTORS), inputs[RANK])
assert gathers(nodes) == 3, "the two matrices and the transposed one"
assert_alike(found, of_one)
mean, _ = gradients_of(distributed(FACTORS, hvd.Average), inputs[RANK])
assert_alike(mean, [each / SIZE for each in of_one])
for half, bits in ((hvd.Compression.bf16, 8), (hvd.Compression.fp16, 11)):
    found, _ = gradients_of(distributed(half), inputs[RANK])
    assert_alike(found, of_one, 2.0**-bits)
    assert not all(np.array_equal(a, b) for a, b in zip(found, dense, strict=True))

# By itself: the slow network of one is worth a choice, the fast one of the other is not.
for reduce, many in ((1e-6, True), (1e-15, False)):
    speeds._found.speeds = speeds.Speeds(reduce=reduce, gather=1e-9, multiply=1e-12)
    found, nodes = gradients_of(distributed(hvd.Compression.none), inputs[RANK])
    assert_alike(found, of_one)
    conditions = [node for node in nodes if node.op in ("If", "StatelessIf")]
    assert len(conditions) == (2 if many else 0), "those of 1 MiB"
    waits = [each for node in conditions for each in node.input if each.startswith("^")]
    assert waits == [], "each starts when its gradient is there"

# A rank has too many rows for factors: none uses them.
speeds._found.speeds = speeds.Speeds(reduce=1e-9, gather=1e-9, multiply=0)
size, width = LARGE * 600 * 4, (LARGE + 600) * 4
limit = int(0.8 * size / (width * (SIZE - 1)))
many = random.normal(size=(limit + (RANK == 1), INNER)).astype(np.float32)
found, _ = gradients_of(distributed(hvd.Compression.none), many)
exact, _ = gradients_of(distributed(DENSE), many)
assert all(np.array_equal(one, other) for one, other in zip(found, exact, strict=True))

# A rank has joined: it sends zeros, and no factors.
speeds._found.speeds = speeds.Speeds(reduce=1e-6, gather=1e-9, multiply=1e-12)
if RANK == 0:
    last, _ = gradients_of(distributed(hvd.Compression.none), inputs[0])
    alone, _ = gradients_of(lambda tape: tape, inputs[0])
hvd.join()
if RANK == 0:
    for one, other in zip(last, alone, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * np.abs(other).max())

# What is measured is the same everywhere.
speeds._found.speeds = None
measured = speeds.measured()
assert measured is not None
assert min(vars(measured).values()) > 0
assert len({str(each) for each in hvd.allgather_object(measured)}) == 1
speeds._found.processors[-1] = "another processor"
with pytest.raises(ValueError, match=f"rank {SIZE - 1} on another processor"):
    gradients_of(distributed(FACTORS), inputs[RANK])
assert os.environ.get("RDMA_TRANSPORT_GRADIENTS") is None
print("done")
