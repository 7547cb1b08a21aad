"""Nobody but its owner writes into a tensor, whatever kernels do with one that was received."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from bench.support.cluster import Cluster
from tests.support import forked
from tests.support.graphs import A, B, C, Graph, assert_equal_over_both, same_bits, v1

pytestmark = pytest.mark.timeout(120)
Clusters = dict[str, Cluster]
ROWS, COLUMNS = 64, 1024
NUMBERS = itertools.count()
FRESH = 2**40  # a step that no accumulator has passed: it drops what is older than its own step
ORIGINAL = np.random.default_rng(3).uniform(1, 2, [ROWS, COLUMNS]).astype(np.float32)

# What shares the buffer of the tensor it is made from; each is handed on as a matrix of floats.
VIEWS: dict[str, Callable[[Any], Any]] = {
    "all of it": lambda x: x,
    "its tail": lambda x: x[8:],
    "its head": lambda x: x[:8],
    "a middle": lambda x: tf.slice(x, [16, 0], [16, COLUMNS]),
    "a tail of its tail": lambda x: x[8:][8:],
    "a reshape": lambda x: tf.reshape(x, [COLUMNS, ROWS]),
    "one of a split": lambda x: tf.split(x, 4)[2],
    "one of an unstack": lambda x: tf.expand_dims(tf.unstack(x)[5], 0),
    "an identity": lambda x: tf.identity(tf.identity(x)),
    "a bitcast and back": lambda x: tf.bitcast(tf.bitcast(x, tf.int32), tf.float32),
    "a squeeze of an expansion": lambda x: tf.squeeze(tf.expand_dims(x, 0), [0]),
    "a snapshot": lambda x: tf.raw_ops.Snapshot(input=x),
}


def through_queue(x: Any) -> Any:
    queue = v1.FIFOQueue(4, [tf.float32])
    with tf.control_dependencies([queue.enqueue([x])]):
        return -tf.ensure_shape(queue.dequeue(), x.shape)


def through_stage(x: Any) -> Any:
    name = f"area{next(NUMBERS)}"
    with tf.control_dependencies([tf.raw_ops.Stage(values=[x], shared_name=name)]):
        (taken,) = tf.raw_ops.Unstage(dtypes=[tf.float32], shared_name=name)
        return -tf.ensure_shape(taken, x.shape)


def through_stack(x: Any) -> Any:
    stack = tf.raw_ops.StackV2(max_size=-1, elem_type=tf.float32)
    with tf.control_dependencies([tf.raw_ops.StackPushV2(handle=stack, elem=x)]):
        return -tf.ensure_shape(tf.raw_ops.StackPopV2(handle=stack, elem_type=tf.float32), x.shape)


def through_tensor_list(x: Any) -> Any:
    listed = tf.raw_ops.TensorListFromTensor(tensor=x, element_shape=x.shape[1:])
    changed = tf.raw_ops.TensorListSetItem(input_handle=listed, index=0, item=-x[-1])
    return tf.raw_ops.TensorListStack(
        input_handle=changed, element_shape=x.shape[1:], element_dtype=tf.float32
    ) * tf.raw_ops.TensorListGetItem(
        input_handle=listed, index=0, element_shape=x.shape[1:], element_dtype=tf.float32
    )


def aggregated_in_tensor_array(x: Any) -> Any:
    handle, flow = tf.raw_ops.TensorArrayV3(size=1, dtype=tf.float32)
    flow = tf.raw_ops.TensorArrayWriteV3(handle=handle, index=0, value=x, flow_in=flow)
    gradient, flow = tf.raw_ops.TensorArrayGradV3(handle=handle, flow_in=flow, source="s")
    for _ in range(3):  # the second and the third are added to what the first left there
        flow = tf.raw_ops.TensorArrayWriteV3(handle=gradient, index=0, value=x, flow_in=flow)
    return -tf.raw_ops.TensorArrayReadV3(handle=gradient, index=0, flow_in=flow, dtype=tf.float32)


def accumulated(x: Any) -> Any:
    accumulator = v1.ConditionalAccumulator(tf.float32)
    with tf.control_dependencies([accumulator.apply_grad(x, FRESH)]):
        again = accumulator.apply_grad(x, FRESH)
    with tf.control_dependencies([again]):
        return -accumulator.take_grad(2)


def accumulated_sparsely(x: Any) -> Any:
    accumulator = v1.SparseConditionalAccumulator(tf.float32, shape=x.shape)
    indices = tf.range(x.shape[0], dtype=tf.int64)
    with tf.control_dependencies([accumulator.apply_grad(indices, x, local_step=FRESH)]):
        again = accumulator.apply_grad(indices, x, local_step=FRESH)
    with tf.control_dependencies([again]):
        return -accumulator.take_grad(2).values


def variable(shape: Any, resource: bool) -> Any:
    name = f"held{next(NUMBERS)}"  # a server keeps reference variables by name, over sessions
    return v1.get_variable(name, shape, initializer=v1.ones_initializer(), use_resource=resource)


def assigned(resource: bool) -> Callable[[Any], Any]:
    def use(x: Any) -> Any:
        held = variable(x.shape, resource)
        with tf.control_dependencies([held.assign(x)]):
            added = held.assign_add(tf.ones(x.shape))
        with tf.control_dependencies([added]):
            changed = v1.scatter_add(held, [0], -tf.ones([1, x.shape[1]]))
        with tf.control_dependencies([changed]):
            return tf.identity(held.read_value())

    return use


def trained(make: Callable[[], Any], resource: bool) -> Callable[[Any], Any]:
    def use(x: Any) -> Any:
        weights = variable(x.shape, resource)
        with tf.control_dependencies([weights.initializer]):
            first = make().apply_gradients([(x, weights)])
        with tf.control_dependencies([first]):
            return tf.identity(weights.read_value())

    return use


USES: dict[str, Callable[[Any], Any]] = {
    "negative": tf.negative,
    "a chain": lambda x: tf.exp(tf.negative(tf.sqrt(tf.abs(x)))),
    "relu": tf.nn.relu,
    "clip": lambda x: tf.clip_by_value(x, 1.2, 1.7),
    "add": lambda x: x + 1.0,
    "subtract from": lambda x: 1.0 - x,
    "sum of several": lambda x: tf.add_n([x, x, x]),
    "softmax": tf.nn.softmax,
    "bias": lambda x: tf.nn.bias_add(x, tf.ones([x.shape[1]])),
    "diagonal": lambda x: tf.linalg.set_diag(x, tf.zeros([min(x.shape)])),
    "band": lambda x: tf.linalg.band_part(x, 1, 1),
    "scatter update": lambda x: tf.tensor_scatter_nd_update(x, [[0]], [tf.zeros([x.shape[1]])]),
    "scatter add": lambda x: tf.tensor_scatter_nd_add(x, [[0]], [tf.ones([x.shape[1]])]),
    "scatter non-aliasing": lambda x: tf.raw_ops.ScatterNdNonAliasingAdd(
        input=x, indices=[[0]], updates=tf.ones([1, x.shape[1]])
    ),
    "strided update": lambda x: tf.raw_ops.TensorStridedSliceUpdate(
        input=x, begin=[0], end=[1], strides=[1], value=tf.zeros([1, x.shape[1]])
    ),
    "select": lambda x: tf.where(x > 1.5, x, -x),
    "sort": lambda x: tf.sort(x),
    "running sum": lambda x: tf.cumsum(x),
    "concatenation of one": lambda x: -tf.raw_ops.ConcatV2(values=[x, x[:0]], axis=0),
    "queue": through_queue,
    "staging area": through_stage,
    "stack": through_stack,
    "tensor list": through_tensor_list,
    "tensor array": aggregated_in_tensor_array,
    "accumulator": accumulated,
    "sparse accumulator": accumulated_sparsely,
    "resource variable": assigned(True),
    "reference variable": assigned(False),
    "gradient descent": trained(lambda: v1.train.GradientDescentOptimizer(0.1), True),
    "gradient descent, reference": trained(lambda: v1.train.GradientDescentOptimizer(0.1), False),
    "momentum": trained(lambda: v1.train.MomentumOptimizer(0.1, 0.9), True),
    "adam, reference": trained(lambda: v1.train.AdamOptimizer(0.1), False),
}  # fmt: skip


def used_elsewhere(pairs: list[tuple[str, str]]) -> Callable[[], Any]:
    """One source on a, used on b by each (view, use); what a and b still see of it comes last."""

    def build() -> Any:
        v1.disable_control_flow_v2()
        with tf.device(A):
            source = tf.identity(tf.constant(ORIGINAL))
        with tf.device(B):
            received = tf.identity(source)
            results = [USES[use](VIEWS[view](received)) for view, use in pairs]
            with tf.control_dependencies(results):
                still_received = tf.identity(received)
        with tf.control_dependencies(results), tf.device(A):
            return [*results, tf.identity(still_received), tf.identity(source)]

    return build


def assert_untouched(clusters: Clusters, pairs: list[tuple[str, str]], steps: int = 2) -> None:
    for results in assert_equal_over_both(clusters, used_elsewhere(pairs), steps=steps):
        for seen in results[-2:]:
            assert seen.tobytes() == ORIGINAL.tobytes()


@pytest.mark.parametrize("view", VIEWS)
def test_no_use_of_a_received_tensor_writes_into_it(clusters: Clusters, view: str) -> None:
    assert_untouched(clusters, [(view, use) for use in USES])


@pytest.mark.parametrize("name", ["InplaceUpdate", "InplaceAdd", "InplaceSub"])
def test_a_kernel_that_writes_without_asking_writes_into_a_copy(
    clusters: Clusters, name: str
) -> None:
    def build() -> Any:
        with tf.device(A):
            source = tf.identity(tf.constant(ORIGINAL))
        with tf.device(B):
            changed = getattr(tf.raw_ops, name)(x=source, i=[0], v=-tf.ones([1, COLUMNS]))
        with tf.control_dependencies([changed]), tf.device(A):
            return [changed, tf.identity(source)]

    results = assert_equal_over_both(clusters, build, steps=2)
    for _, after in results if name != "InplaceUpdate" else results[:0]:
        assert after.tobytes() == ORIGINAL.tobytes()


def test_operations_that_a_setting_names_get_copies() -> None:
    def build() -> Any:
        with tf.device(A):
            source = tf.identity(tf.constant(ORIGINAL))
        with tf.device(B):
            return [tf.negative(source), tf.abs(source)]

    setting = {"RDMA_TRANSPORT_COPY_INPUTS_OF": "NoSuchOp, Neg"}
    with Cluster({"a": 1, "b": 1}, environment=setting) as cluster, Graph(cluster, build) as graph:
        for _ in range(3):
            assert same_bits(graph.run(), [-ORIGINAL, ORIGINAL])
        assert cluster["b", 0].stats()["copied_bytes"] == 3 * ORIGINAL.nbytes


# How a reference variable of ones may be overwritten in place; each leaves no element as it was.
OVERWRITES: dict[str, Callable[[Any], Any]] = {
    "assign": lambda v: v1.assign(v, tf.fill(v.shape, 7.0)),
    "assign_add": lambda v: v1.assign_add(v, tf.ones(v.shape)),
    "assign_sub": lambda v: v1.assign_sub(v, tf.ones(v.shape)),
    "scatter_update": lambda v: v1.scatter_update(v, tf.range(v.shape[0]), -tf.ones(v.shape)),
    "scatter_nd_add": lambda v: v1.scatter_nd_add(
        v, tf.range(v.shape[0])[:, None], tf.ones(v.shape)
    ),
    "strided assign": lambda v: v[:].assign(tf.zeros(v.shape)),
    "gradient descent": lambda v: v1.train.GradientDescentOptimizer(0.5).apply_gradients(
        [(tf.ones(v.shape), v)]
    ),
}


@pytest.mark.parametrize("use_resource", [False, True])
@pytest.mark.parametrize("way", OVERWRITES)
def test_what_was_received_of_a_variable_stays_when_the_variable_changes(
    clusters: Clusters, way: str, use_resource: bool
) -> None:
    """Overwritten once b has it, looked at on b after that: the value at the send, in each step."""

    def build() -> Any:
        with tf.device(A):
            held = variable([ROWS, COLUMNS], use_resource)
            with tf.control_dependencies([held.initializer]):
                before = tf.identity(held.read_value())
        with tf.device(B):
            received = tf.identity(before)
            arrived = tf.reduce_sum(received)
        with tf.control_dependencies([arrived]), tf.device(A):
            overwritten = OVERWRITES[way](held)
        with tf.control_dependencies([overwritten]):
            with tf.device(A):
                after = tf.identity(held.read_value())
            with tf.device(B):
                # A copy, made after the overwriting.
                return [tf.stack([received, received]), tf.identity(after)]

    # gRPC is no oracle: it sends what a reference variable holds when it is asked.
    with Graph(clusters["rdma"], build) as graph:
        for _ in range(3):
            seen, after = graph.run()
            assert (seen == 1).all()
            assert (after != 1).all()


@pytest.mark.parametrize("way", OVERWRITES)
def test_a_reference_variable_overwritten_as_soon_as_it_was_read(
    clusters: Clusters, way: str
) -> None:
    """Overwritten right after it was read, before or while it is sent: what was read arrives."""

    def build() -> Any:
        with tf.device(A):
            held = variable([ROWS, COLUMNS], False)
            with tf.control_dependencies([held.initializer]):
                before = tf.identity(held)
        with tf.control_dependencies([before]), tf.device(A):
            overwritten = OVERWRITES[way](held)
        with tf.device(B), tf.control_dependencies([overwritten]):
            return tf.stack([before, before])

    # gRPC sends what the variable holds when it is asked: no oracle here.
    with Graph(clusters["rdma"], build) as graph:
        for _ in range(10):
            assert (graph.run() == 1).all()


def test_what_is_fed_arrives_and_the_next_feed_does_not_disturb_it(clusters: Clusters) -> None:
    """A queue on b keeps what was fed to a in earlier steps."""
    feeds = [np.arange(n, dtype=np.float32) + n for n in (5000, 5001, 70001, 1, 300000)]

    def build() -> Any:
        with tf.device(A):
            fed = v1.placeholder(tf.float32, [None], name="fed")
        with tf.device(B):
            queue = v1.FIFOQueue(10, [tf.float32], shared_name="kept")
            with tf.control_dependencies([queue.enqueue([fed])]):
                last = tf.equal(tf.size(fed), len(feeds[-1]))
        with tf.device(C):
            return [tf.identity(fed), last]

    assert_equal_over_both(clusters, build, feeds=("fed:0", feeds))


PY_FUNC = """
import json, sys, numpy as np, tensorflow as tf
v1 = tf.compat.v1
v1.disable_eager_execution()
protocol, cluster = sys.argv[1], json.loads(sys.argv[2])
server = tf.distribute.Server(cluster, job_name="chief", task_index=0, protocol=protocol)

def spoil(*arrays):
    for array in arrays:
        array[...] = -1
    return arrays[0]

with tf.device("/job:w/task:0"):
    sources = [tf.identity(tf.fill([n], 2.0)) for n in (100, 5000, 300000)]
with tf.device("/job:chief/task:0"):
    spoilt = [v1.py_func(spoil, [x], tf.float32) for x in sources]
    sliced = v1.py_func(spoil, [sources[2][4096:]], tf.float32)
    eager = tf.py_function(lambda x: -x, [sources[1]], tf.float32)
with tf.control_dependencies([*spoilt, sliced, eager]), tf.device("/job:w/task:0"):
    after = [tf.identity(x) for x in sources]
with v1.Session(server.target) as session:
    for _ in range(3):
        values = session.run([spoilt, sliced, eager, after])
print(json.dumps([[v.size, float(v.min()), float(v.max())] for v in tf.nest.flatten(values)]))
sys.stdout.flush()
import os; os._exit(0)
"""


FETCHES = """
import json, os, sys, numpy as np, tensorflow as tf
v1 = tf.compat.v1
v1.disable_eager_execution()
protocol, cluster = sys.argv[1], json.loads(sys.argv[2])
server = tf.distribute.Server(cluster, job_name="chief", task_index=0, protocol=protocol)
with tf.device("/job:w/task:0"):
    fed = v1.placeholder(tf.float32, [])
    source = tf.fill([300, 1000], fed) + 0.0
with tf.device("/job:chief/task:0"):
    flat = tf.reshape(tf.identity(source), [-1])
    fetches = [tf.identity(source), flat, flat[4096:], flat[4096:][4096:],
               tf.slice(flat, [1024], [4096]), tf.split(source, 3)[1], tf.unstack(source)[8],
               tf.bitcast(source[8:], tf.int32)]
kept = []
with v1.Session(server.target) as session:
    call = session.make_callable(fetches, [fed])
    for step in range(4):
        kept += session.run(fetches, {fed: step}) if step % 2 else call(np.float32(step))
        for array in kept:
            array += 1  # also to those of earlier steps
print(json.dumps([[a.size, float(a.min()), float(a.max())] for a in kept]))
sys.stdout.flush()
os._exit(0)
"""

EAGER_TENSORS = """
import ctypes, json, os, sys, tempfile, numpy as np, tensorflow as tf
protocol, cluster = sys.argv[1], json.loads(sys.argv[2])
del cluster["chief"]
tf.config.experimental_connect_to_cluster(
    tf.train.ClusterSpec(cluster), job_name="chief", protocol=protocol)
here, there = "/job:chief/task:0", "/job:w/task:0"
with tf.device(there):
    source, held = tf.fill([300, 1000], 2.0), tf.Variable(tf.fill([300, 1000], 2.0))

def scribble(tensor):
    array = np.from_dlpack(tensor)  # read-only to NumPy, but others do not ask
    ctypes.memset(array.ctypes.data, 0, array.nbytes)
    return tensor

def spoil(array):
    array[...] = -1
    return array

@tf.function
def returned():
    with tf.device(here):
        x = tf.identity(source)
        return [x, x[8:], tf.reshape(x, [-1])[4096:], tf.split(x, 3)[1]]

@tf.function
def called():
    with tf.device(here):
        x = tf.identity(source)
        return [tf.numpy_function(spoil, [x[8:]], tf.float32),
                *[tf.py_function(lambda t: scribble(t) + 1, [t], tf.float32) for t in (x, x[8:])]]

def by_operations():
    return [scribble(x) for x in (tf.identity(source), held.read_value(), tf.identity(source)[8:])]

def by_functions():
    return [*map(scribble, returned()), *called()]

def by_datasets():
    x, sets = tf.identity(source), tf.data.Dataset
    elements = [*sets.from_tensor_slices(x).batch(100), *sets.from_tensors(x[8:])]
    arrays = sets.from_tensor_slices(x[8:]).take(1).as_numpy_iterator()
    mapped = sets.from_tensor_slices(x[8:]).take(1).map(
        lambda t: tf.numpy_function(spoil, [t], tf.float32))
    return [*map(scribble, elements), *[tf.constant(a + 1) for a in arrays], *mapped]

def by_arrays():
    results = []
    for x in (tf.identity(source), tf.identity(source)[8:]):
        own = x.numpy()
        own += 1
        views = [np.asarray(x), np.asarray(memoryview(x))]
        assert not any(view.flags.writeable for view in views)
        results += [tf.constant(array) for array in (own, *views)]
    return results

def by_variables_and_files():
    x = tf.identity(source)
    tail, kept = tf.Variable(x[8:]), tf.Variable(x)
    tail.scatter_update(tf.IndexedSlices(tf.zeros([1, 1000]), [0]))
    kept.assign_sub(tf.ones_like(kept))
    with tempfile.TemporaryDirectory() as folder:
        saved = tf.train.Checkpoint(v=kept).save(folder + "/checkpoint")
        kept.assign(x)
        tf.train.Checkpoint(v=kept).restore(saved)
        tf.io.write_file(folder + "/tensor", tf.io.serialize_tensor(x[8:]))
        read = tf.io.parse_tensor(tf.io.read_file(folder + "/tensor"), tf.float32)
    return [tail, kept, tf.identity(read), scribble(read)]

results = []
with tf.device(here):
    for _ in range(2):
        for uses in (by_operations, by_functions, by_datasets, by_arrays, by_variables_and_files):
            results += uses()
print(json.dumps([[int(tf.size(t)), float(tf.reduce_min(t)), float(tf.reduce_max(t))]
                  for t in [*results, source, held]]))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize("program", [FETCHES, EAGER_TENSORS], ids=["fetches", "eager_tensors"])
def test_a_program_may_write_into_what_it_gets(tmp_path: Path, program: str) -> None:
    """Arrays and eager tensors in the process of a server."""
    script = tmp_path / "chief.py"
    script.write_text(program)
    summaries = {}
    for protocol in ("grpc", "rdma"):
        with Cluster({"w": 1, "chief": 1}, protocol, without=[("chief", 0)]) as cluster:
            result = forked.run([str(script), protocol, json.dumps(cluster.spec)], timeout=90)
            assert result.returncode == 0, result.stderr[-3000:]
            summaries[protocol] = json.loads(result.stdout.splitlines()[-1])
            if protocol == "rdma":
                assert cluster["w", 0].stats()["sent"]["static"]["tensors"] > 0
    assert summaries["grpc"] == summaries["rdma"]


def test_python_functions_may_spoil_what_they_are_given(tmp_path: Path) -> None:
    script = tmp_path / "chief.py"
    script.write_text(PY_FUNC)
    with Cluster({"w": 1, "chief": 1}, without=[("chief", 0)]) as cluster:  # that is the script
        result = forked.run([str(script), "rdma", json.dumps(cluster.spec)], timeout=90)
        assert result.returncode == 0, result.stderr[-3000:]
        summaries = json.loads(result.stdout.splitlines()[-1])
        assert cluster["w", 0].stats()["sent"]["static"]["tensors"] > 0
    spoilt = [[100, -1, -1], [5000, -1, -1], [300000, -1, -1], [300000 - 4096, -1, -1]]
    unchanged = [[100, 2, 2], [5000, 2, 2], [300000, 2, 2]]
    assert summaries == [*spoilt, [5000, -2, -2], *unchanged]
