"""What cannot be analysed ends in a sentence, in bounded time and memory, and never in a crash."""

import contextlib
import json
import resource
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, types_pb2

from graph_analyzer import AnalysisError, analyze
from tests.support.deadlines import patient

pytestmark = pytest.mark.timeout(60)
v1 = tf.compat.v1
PS, W0 = "/job:ps/task:0", "/job:worker/task:0"
CLUSTER = "ps=1,worker=2"
ROOT = Path(__file__).parents[2]
FLOAT, INT32 = types_pb2.DT_FLOAT, types_pb2.DT_INT32
Graph = Any  # a graph_pb2.GraphDef


def empty_graph() -> Graph:
    graph = graph_pb2.GraphDef()
    graph.versions.producer = v1.get_default_graph().graph_def_versions.producer
    return graph


def add(nodes: Any, name: str, op: str, *inputs: str, device: str = PS) -> Any:
    node = nodes.add(name=name, op=op, input=inputs, device=device)
    if op == "Placeholder":
        node.attr["dtype"].type = FLOAT
        node.attr["shape"].shape.dim.add(size=2048)
    elif op != "NoOp" and not op.startswith("call"):
        node.attr["T"].type = FLOAT
    return node


def two_tasks() -> Graph:
    graph = empty_graph()
    add(graph.node, "x", "Placeholder")
    add(graph.node, "y", "Neg", "x", device=W0)
    return graph


def without_devices() -> Graph:
    graph = two_tasks()
    for node in graph.node:
        node.device = ""
    return graph


def with_device(device: str) -> Graph:
    graph = two_tasks()
    graph.node[1].device = device
    return graph


def unknown_op() -> Graph:
    graph = two_tasks()
    graph.node[1].op = "NobodyRegisteredThis"
    return graph


def unknown_input() -> Graph:
    graph = two_tasks()
    graph.node[1].input[0] = "nobody"
    return graph


def wrong_type() -> Graph:
    graph = two_tasks()
    graph.node[1].attr["T"].type = INT32
    return graph


def twice_the_name() -> Graph:
    graph = two_tasks()
    graph.node[1].name = "x"
    return graph


def cycle() -> Graph:
    graph = two_tasks()
    add(graph.node, "a", "Identity", "b")
    add(graph.node, "b", "Identity", "a", device=W0)
    return graph


def cycle_of_control() -> Graph:
    graph = two_tasks()
    add(graph.node, "a", "NoOp", "^b")
    add(graph.node, "b", "NoOp", "^a", device=W0)
    return graph


def cycle_of_merges() -> Graph:
    graph = two_tasks()
    for name, other in (("a", "b"), ("b", "a")):
        add(graph.node, name, "Merge", other, "x").attr["N"].i = 2
    return graph


def loop_that_merges_three() -> Graph:
    """A Merge of a loop with an input too many."""
    graph = two_tasks()
    enter = add(graph.node, "enter", "Enter", "x")
    enter.attr["frame_name"].s = b"loop"
    add(graph.node, "next", "NextIteration", "merge")
    add(graph.node, "merge", "Merge", "enter", "next", "x").attr["N"].i = 3
    return graph


def constant_of_two_types() -> Graph:
    """Says one type and holds another; a shape depends on it."""
    graph = two_tasks()
    axis = add(graph.node, "axis", "Const")
    axis.attr["dtype"].type = INT32
    axis.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0, tf.int64))
    concat = add(graph.node, "concat", "ConcatV2", "x", "x", "axis")
    concat.attr["N"].i = 2
    concat.attr["Tidx"].type = INT32
    return graph


def add_function(graph: Graph, name: str, *calls: str) -> None:
    """A function that calls others one after the other, or else negates."""
    function = graph.library.function.add()
    function.signature.name = name
    function.signature.input_arg.add(name="x", type=FLOAT)
    function.signature.output_arg.add(name="r", type=FLOAT)
    last = "x"
    for index, call in enumerate(calls):
        add(function.node_def, f"c{index}", call, last, device="")
        last = f"c{index}:r:0"
    if not calls:
        add(function.node_def, "n", "Neg", last, device="")
        last = "n:y:0"
    function.ret["r"] = last


def recursive() -> Graph:
    graph = two_tasks()
    add_function(graph, "call_self", "call_self")
    add(graph.node, "c", "call_self", "x")
    return graph


def recursive_in_turns() -> Graph:
    graph = two_tasks()
    add_function(graph, "call_a", "call_b")
    add_function(graph, "call_b", "call_a")
    add(graph.node, "c", "call_a", "x")
    return graph


def exponential() -> Graph:
    graph = two_tasks()
    add_function(graph, "call_0")
    for depth in range(1, 61):
        add_function(graph, f"call_{depth}", *[f"call_{depth - 1}"] * 2)
    add(graph.node, "c", "call_60", "x")
    return graph


def nested_too_deeply() -> Graph:
    graph = two_tasks()
    add_function(graph, "call_0")
    for depth in range(1, 20_000):
        add_function(graph, f"call_{depth}", f"call_{depth - 1}")
    add(graph.node, "c", "call_19999", "x")
    return graph


def unfinished_function() -> Graph:
    graph = two_tasks()
    add_function(graph, "call_half")
    graph.library.function[0].ret["r"] = "nobody:y:0"
    add(graph.node, "c", "call_half", "x")
    return graph


def branch_that_gives_nothing() -> Graph:
    """A branch without the output that its If has."""
    graph = two_tasks()
    for name in ("then", "else"):
        add_function(graph, name)
    del graph.library.function[0].signature.output_arg[:]
    add(graph.node, "p", "Placeholder").attr["dtype"].type = types_pb2.DT_BOOL
    choice = graph.node.add(name="choice", op="If", input=["p", "x"], device=PS)
    choice.attr["Tcond"].type = types_pb2.DT_BOOL
    choice.attr["Tin"].list.type.append(FLOAT)
    choice.attr["Tout"].list.type.append(FLOAT)
    choice.attr["then_branch"].func.name = "then"
    choice.attr["else_branch"].func.name = "else"
    choice.attr["_lower_using_switch_merge"].b = True
    add(graph.node, "after", "Neg", "choice")
    return graph


BAD: dict[str, tuple[Callable[[], Graph], str]] = {
    "without devices": (without_devices, "placed"),
    "unknown task": (
        lambda: with_device("/job:worker/task:2"),
        "/job:worker/task:2.*/job:ps/task:0.*/job:worker/task:1",
    ),
    "unknown job": (lambda: with_device("/job:chief/task:0"), "/job:chief/task:0"),
    "malformed device": (lambda: with_device("worker 0"), "worker 0"),
    "unknown op": (unknown_op, "NobodyRegisteredThis"),
    "unknown input": (unknown_input, "nobody"),
    "wrong type": (wrong_type, "'?y'?"),
    "a name twice": (twice_the_name, "x"),
    "cycle": (cycle, "cycle"),
    "cycle of control": (cycle_of_control, "cycle"),
    "cycle of merges": (cycle_of_merges, "cycle"),
    "recursive": (recursive, "call_self calls itself"),
    "recursive in turns": (recursive_in_turns, "calls itself"),
    "exponential": (exponential, "nodes"),
    "nested too deeply": (nested_too_deeply, "nested"),
    "no nodes": (empty_graph, "no nodes|without nodes"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_graphs_end_in_a_sentence_soon(kind: str) -> None:
    build, says = BAD[kind]
    data = build().SerializeToString()
    start = time.monotonic()
    with pytest.raises(AnalysisError, match=says) as caught:
        analyze(data, CLUSTER)
    assert time.monotonic() - start < patient(20)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_unknown_tasks_in_functions_are_found() -> None:
    @tf.function
    def body(x: Any) -> Any:
        with tf.device("/job:evaluator/task:0"):
            return tf.negative(x)

    graph = tf.Graph()
    with graph.as_default(), tf.device(PS):
        body(v1.placeholder(tf.float32, [5000]))
    with pytest.raises(AnalysisError, match="evaluator"):
        analyze(graph, CLUSTER)


def test_a_large_graph_takes_bounded_time() -> None:
    # 200,000 operations in chains of 100, which all begin with one tensor from the other task
    graph = empty_graph()
    add(graph.node, "x", "Placeholder", device=W0)
    for chain in range(2000):
        last = "x"
        for link in range(100):
            add(graph.node, f"n{chain}/{link}", "Neg", last)
            last = f"n{chain}/{link}"
    data = graph.SerializeToString()
    start = time.monotonic()
    plan = analyze(data, CLUSTER)
    assert time.monotonic() - start < patient(60)
    assert plan.nodes == 200_001
    assert [(edge.name, edge.bytes) for edge in plan.edges] == [("x:0", 8192)]


def test_many_edges_take_bounded_time() -> None:
    graph = empty_graph()
    last = add(graph.node, "x", "Placeholder").name
    for index in range(8_000):
        last = add(graph.node, f"n{index}", "Neg", last, device=(PS, W0)[index % 2]).name
    start = time.monotonic()
    plan = analyze(graph, CLUSTER)
    assert time.monotonic() - start < patient(60)
    assert len(plan.edges) == 8_000 - 1  # x and n0 are on the same task


def test_a_constant_that_only_says_it_is_large_is_not_filled_in() -> None:
    # 1 GiB is declared in some 100 bytes; inference evaluates what gives Reshape its shape
    graph = two_tasks()

    def constant(name: str, elements: int) -> None:
        node = graph.node.add(name=name, op="Const", device=PS)
        node.attr["dtype"].type = INT32
        node.attr["value"].tensor.dtype = INT32
        node.attr["value"].tensor.tensor_shape.dim.add(size=elements)
        node.attr["value"].tensor.int_val.append(0)

    constant("part", 1)
    constant("axis", 2**28)
    concat = graph.node.add(name="concat", op="ConcatV2", device=PS)
    concat.input.extend(["part", "part", "axis"])
    concat.attr["N"].i = 2
    concat.attr["T"].type = concat.attr["Tidx"].type = INT32
    add(graph.node, "reshape", "Reshape", "x", "concat").attr["Tshape"].type = INT32
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.suppress(AnalysisError):
        analyze(graph, CLUSTER)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 * 1024  # KiB


IN_A_PROCESS = """
    import faulthandler, os, sys
    faulthandler.enable()
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    from graph_analyzer import AnalysisError, analyze
    from pathlib import Path
    for path in sys.argv[1:]:
        try:
            analyze(Path(path).read_bytes(), "ps=1,worker=2")
            print("plan", flush=True)
        except AnalysisError as error:
            print("error:", error, flush=True)
"""


def test_graphs_on_which_tensorflow_itself_aborts(tmp_path: Path) -> None:
    builds = (
        unfinished_function,
        loop_that_merges_three,
        constant_of_two_types,
        branch_that_gives_nothing,
    )
    paths = [tmp_path / f"{build.__name__}.pb" for build in builds]
    for path, build in zip(paths, builds, strict=True):
        path.write_bytes(build().SerializeToString())
    ended = in_a_process(IN_A_PROCESS, *map(str, paths))
    assert ended.returncode == 0, (ended.stdout, ended.stderr[:3000])
    lines = ended.stdout.splitlines()
    assert len(lines) == len(builds)
    assert all(line.startswith(("plan", "error:")) for line in lines)


def in_a_process(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=patient(55),
        check=False,
    )


FUZZ = """
    import faulthandler, json, os, random, resource, sys
    faulthandler.enable()
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    from pathlib import Path
    from graph_analyzer import AnalysisError, analyze
    from tests.graph_analyzer.test_bad_input import of_all_kinds

    # Made here: names count up with all that a process made before.
    graph = of_all_kinds().as_graph_def().SerializeToString(deterministic=True)
    last, count = Path(sys.argv[1]), int(sys.argv[2])
    random = random.Random(int(sys.argv[3]))

    def mutant(kind):
        data = bytearray(graph)
        if kind == 0:
            return random.randbytes(random.randrange(1, 500))
        if kind == 1:
            return bytes(data[: random.randrange(len(data))])
        if kind == 2:  # a piece again, elsewhere
            piece = random.randrange(len(data))
            place = random.randrange(len(data))
            return bytes(data[:place] + data[piece : piece + 100] + data[place:])
        if kind == 3:  # one number for another, which often leaves the message readable
            place = random.randrange(len(data))
            data[place] = random.choice([0, 1, 2, 7, 127, 128, 255])
            return bytes(data)
        for _ in range(random.choice([1, 1, 1, 2, 8])):
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        return bytes(data)

    analyze(graph, "ps=1,worker=2")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 4 * 2**30,) * 2)
    found = {"plan": 0, "error": 0}
    for index in range(count):
        last.write_bytes(data := mutant(index % 7))
        try:
            analyze(data, "ps=1,worker=2")
            found["plan"] += 1
        except AnalysisError as error:
            assert str(error)
            found["error"] += 1
    print(json.dumps(found))
"""


def of_all_kinds() -> tf.Graph:
    """Variables, functions, branches, loops of both kinds, and gradients, on three tasks."""
    graph = tf.Graph()

    @tf.function
    def call(x: Any) -> Any:
        with tf.device(PS):
            near = tf.tanh(x)
        with tf.device(W0):
            return tf.matmul(near, near)

    def body(index: Any, state: Any) -> Any:
        with tf.device(W0):
            return index + 1, tf.matmul(state, state)

    with graph.as_default(), tf.device(PS):
        variable = v1.get_variable("v", [64, 64], initializer=tf.zeros_initializer())
        features = v1.placeholder(tf.float32, [None, 64], "x")
        times = tf.constant(3)
        with tf.device("/job:worker/task:1"):
            tf.reshape(features @ variable, tf.concat([[-1], [32]], 0))
        loop = v1.while_loop(lambda index, _: index < times, body, [0, variable.read_value()])[1]
        tf.cond(times > 2, lambda: call(loop), lambda: loop)
        v1.disable_control_flow_v2()
        try:
            branch = v1.cond(times > 2, lambda: variable + 1.0, lambda: variable + 2.0)
            v1.while_loop(lambda index, _: index < times, body, [0, branch])
        finally:
            v1.enable_control_flow_v2()
        tf.gradients(loop, [variable])
    return graph


def test_corrupt_graphs_never_crash(tmp_path: Path) -> None:
    last = tmp_path / "last.pb"
    ended = in_a_process(FUZZ, str(last), "1000", "1")
    assert ended.returncode == 0, (str(last), ended.stderr[-3000:])
    found = json.loads(ended.stdout)
    assert found["plan"] + found["error"] == 1000
    assert found["error"] > 300
