"""A plan survives JSON and counts every byte once; what is no plan ends in a sentence.

The graph behind ``SAMPLE``: one parameter server, two workers, a 784 x 4096 layer. Per worker the
weight (4 * 784 * 4096 = 12845056 bytes) and its gradient are static, the bias (4 * 4096 = 16384)
is dynamic for its reader, a loss (4 bytes) rides inline, names (strings) go by gRPC.
"""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_analyzer import AnalysisError, Edge, Plan, Site, Task, Traffic, Variable

pytestmark = pytest.mark.timeout(60)

WEIGHT, BIAS, LOSS = 12_845_056, 16_384, 4
SERVER = "/job:ps/task:0"
WORKERS = ("/job:worker/task:0", "/job:worker/task:1")


def edge(name: str, source: str, destination: str, size: int | None, **changes: Any) -> dict:
    device = "{}/device:CPU:0"
    values = {
        "name": name,
        "source": source,
        "destination": destination,
        "source_device": device.format(source),
        "destination_device": device.format(destination),
        "dtype": "float32",
        "shape": [784, 4096],
        "bytes": size,
        "mode": "static",
        "reason": "the shape is known before the step",
        "mutability": "immutable",
        "site": {"op": "grad/MatMul", "type": "MatMul", "kind": "kernel", "through": ["Reshape"]},
        "slots": 2,
        "slot_bytes": 2 * (size or 0),
        "control": False,
    }
    return values | changes


def edges_of(worker: str) -> list[dict]:
    variable = {"op": "w0", "type": "VarHandleOp", "kind": "variable", "through": []}
    none = {"slots": 0, "slot_bytes": 0}
    unknown: dict[str, Any] = {"shape": None, "mode": "grpc", "dtype": "string"}
    return [
        edge("w0/read:0", SERVER, worker, WEIGHT, mutability="variable", site=variable),
        edge("grad[w0]:0", worker, SERVER, WEIGHT),
        edge("b0/read:0", SERVER, worker, BIAS, shape=[4096], **none | {"mode": "dynamic"}),
        edge("loss:0", worker, SERVER, LOSS, shape=[], **none | {"mode": "inline"}),
        edge("names:0", worker, SERVER, None, **none | unknown),
        edge("^go", SERVER, worker, 0, control=True, **none | {"mode": "inline"}),
    ]


SAMPLE: dict[str, Any] = {
    "version": 1,
    "arena_limit": 2**32,
    "analysis_seconds": 0.0125,
    "nodes": 321,
    "tasks": [
        {
            "name": SERVER,
            "slot_bytes": 2 * 2 * WEIGHT,
            "slot_peak_bytes": 2 * WEIGHT,
            "source_bytes": WEIGHT,
            "source_peak_bytes": WEIGHT,
            "sent_bytes": 2 * (WEIGHT + BIAS),
            "received_bytes": 2 * (WEIGHT + LOSS),
        }
    ]
    + [
        {
            "name": worker,
            "slot_bytes": 2 * WEIGHT,
            "slot_peak_bytes": 2 * WEIGHT,
            "source_bytes": WEIGHT,
            "source_peak_bytes": WEIGHT,
            "sent_bytes": WEIGHT + LOSS,
            "received_bytes": WEIGHT + BIAS,
        }
        for worker in WORKERS
    ],
    "edges": [one for worker in WORKERS for one in edges_of(worker)],
    "variables": [
        {"name": "w0", "task": SERVER, "dtype": "float32", "shape": [784, 4096], "bytes": WEIGHT}
        | {"readers": 2},
        {"name": "b0", "task": SERVER, "dtype": "float32", "shape": [4096], "bytes": BIAS}
        | {"readers": 2},
        {"name": "momentum", "task": SERVER, "dtype": "float32", "shape": [784, 4096]}
        | {"bytes": WEIGHT, "readers": 0},
    ],
}


def sample() -> Plan:
    return Plan.from_json(json.dumps(SAMPLE))


def test_bytes_are_counted_by_mode_and_control_edges_are_no_tensors() -> None:
    plan = sample()
    assert plan.by_mode() == {
        "static": Traffic(4, 4 * WEIGHT, 0),
        "dynamic": Traffic(2, 2 * BIAS, 0),
        "inline": Traffic(2, 2 * LOSS, 0),
        "grpc": Traffic(2, 0, 2),
    }
    assert plan.total() == Traffic(10, 4 * WEIGHT + 2 * BIAS + 2 * LOSS, 2)
    assert len(plan.control_edges) == 2
    assert [one.name for one in plan.of_mode("dynamic")] == ["b0/read:0"] * 2
    assert plan.registered_bytes == 11 * WEIGHT  # slots 4 + 2 + 2, sources 1 + 1 + 1
    assert [one.name for one in plan.exchanged()] == ["w0", "b0"]


def test_bytes_are_counted_by_link() -> None:
    links = sample().by_link()
    assert set(links) == {(SERVER, w) for w in WORKERS} | {(w, SERVER) for w in WORKERS}
    assert links[SERVER, WORKERS[0]] == {
        "static": Traffic(1, WEIGHT),
        "dynamic": Traffic(1, BIAS),
    }


def test_an_unknown_mode_is_an_error() -> None:
    with pytest.raises(AnalysisError, match="use one of static, dynamic"):
        sample().of_mode("quick")


names = st.text(max_size=8)
counts = st.integers(0, 2**53)
tasks = st.sampled_from(["/job:a/task:0", "/job:a/task:1", "/job:b/task:0"])
shapes = st.none() | st.lists(st.none() | counts, max_size=3).map(tuple)
kinds = st.sampled_from(["kernel", "variable", "constant", "feed", "function argument", "unknown"])
sites = st.builds(
    Site, op=names, type=names, kind=kinds, through=st.lists(names, max_size=2).map(tuple)
)
edges = st.builds(
    Edge,
    name=names,
    source=tasks,
    destination=tasks,
    source_device=names,
    destination_device=names,
    dtype=names,
    shape=shapes,
    bytes=st.none() | counts,
    mode=st.sampled_from(["static", "dynamic", "inline", "grpc"]),
    reason=names,
    mutability=st.sampled_from(["immutable", "variable", "reference variable"]),
    site=sites,
    slots=counts,
    slot_bytes=counts,
    control=st.booleans(),
)
variables = st.builds(
    Variable,
    name=names,
    task=tasks,
    dtype=names,
    shape=shapes,
    bytes=counts,
    readers=counts,
)
plans = st.builds(
    Plan,
    arena_limit=counts,
    analysis_seconds=st.floats(0, 1e6),
    nodes=counts,
    tasks=st.lists(st.builds(Task, names, *[counts] * 6), max_size=2).map(tuple),
    edges=st.lists(edges, max_size=5).map(tuple),
    variables=st.lists(variables, max_size=2).map(tuple),
    version=st.just(1),
)


@given(plans)
@settings(max_examples=40)
def test_any_plan_survives_json_and_satisfies_the_schema(plan: Plan) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    from graph_analyzer import schema

    text = plan.to_json()
    assert Plan.from_json(text) == plan
    jsonschema.Draft202012Validator(schema()).validate(json.loads(text))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"version": 2}, "version 2, but this program reads version 1"),
        ({"nodes": -1}, "the document.nodes should be a non-negative integer"),
        ({"nodes": True}, "the document.nodes should be"),
        ({"tasks": [7]}, r"tasks\[0\] should be an object, not 7"),
        ({"edges": [edge("x", "a", "b", 1, **{"mode": "fast"})]}, r"edges\[0\].mode should be"),
        ({"edges": [edge("x", "a", "b", 1, shape=[-1])]}, r"edges\[0\].shape should be"),
        ({"edges": [edge("x", "a", "b", 1, site={})]}, r"edges\[0\].site has no 'op'"),
        ({"variables": None}, "the document.variables should be a list"),
    ],
)
def test_a_wrong_plan_is_an_error_that_names_the_place(change: dict, sentence: str) -> None:
    with pytest.raises(AnalysisError, match=sentence):
        Plan.from_json(json.dumps(SAMPLE | change))


@pytest.mark.parametrize("text", ["", "[", "[]", "NaN", '{"version": NaN}', "[" * 100_000, b"\xff"])
def test_what_is_not_json_is_an_error(text: str | bytes) -> None:
    with pytest.raises(AnalysisError, match="not a plan"):
        Plan.from_json(text)
