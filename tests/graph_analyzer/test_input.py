"""Graphs, clusters and sizes in every form people have them; bad ones end in a sentence."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_analyzer import AnalysisError
from graph_analyzer.clusters import task_counts
from graph_analyzer.sources import graph_def_bytes
from rdma_transport.units import format_bytes, format_seconds, parse_bandwidth, parse_size
from tests.support.deadlines import patient

pytestmark = pytest.mark.timeout(60)


class Spec:
    """Stands for tf.train.ClusterSpec."""

    def as_dict(self) -> dict[str, Any]:
        return {"ps": ["h:1"], "worker": {0: "h:2", 2: "h:3"}}


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        ("ps=1,worker=2", {"ps": 1, "worker": 2}),
        (" ps = 1 , worker = 2 ", {"ps": 1, "worker": 2}),
        ({"ps": 1, "worker": ["a:1", "b:1"]}, {"ps": 1, "worker": 2}),
        ('{"ps": ["a:1"], "worker": 3}', {"ps": 1, "worker": 3}),
        ('{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 0}}', {"ps": 1}),
        ('{"cluster": {"0": "a:1"}}', {"cluster": 1}),
        (Spec(), {"ps": 1, "worker": 3}),
    ],
)
def test_clusters_as_people_have_them(cluster: Any, expected: dict[str, int]) -> None:
    assert task_counts(cluster) == expected


@pytest.mark.parametrize(
    "cluster",
    [
        "",
        "ps",
        "ps=",
        "ps=0",
        "ps=-1",
        "ps=1,ps=2",
        "ps=²",
        "{",
        "{}",
        "[1]",
        "p/s=1",
        {},
        {"ps": 0},
        {"ps": True},
        {"ps": None},
        {"ps": {}},
        {"ps": {"x": "h:1"}},
        {3: 1},
        {"ps": 2**20},
        7,
        None,
    ],
)
def test_bad_clusters_are_errors(cluster: Any) -> None:
    with pytest.raises(AnalysisError):
        task_counts(cluster)


def field(number: int, payload: bytes) -> bytes:
    """One protobuf field of bytes; short payloads only, so that the length is one byte."""
    assert len(payload) < 128
    return bytes([number << 3 | 2, len(payload)]) + payload


def node(name: bytes, op: bytes = b"NoOp") -> bytes:
    return field(1, field(1, name) + field(2, op))


def meta(tag: bytes, name: bytes) -> bytes:
    return field(1, field(4, tag) + field(5, b"2.21.0")) + field(2, node(name))


# field numbers as in TensorFlow's meta_graph.proto: tags 4, tensorflow_version 5, graph_def 2
GRAPH = node(b"a") + node(b"b", b"Const")
SAVED_MODEL = b"\x08\x01" + field(2, meta(b"serve", b"a")) + field(2, meta(b"train", b"b"))


def test_files_hold_graphs_in_any_of_three_messages(tmp_path: Path) -> None:
    for name, data in (("g.pb", GRAPH), ("m.meta", meta(b"x", b"a")), ("s.pb", SAVED_MODEL)):
        (tmp_path / name).write_bytes(data)
    assert graph_def_bytes(tmp_path / "g.pb") == GRAPH
    assert graph_def_bytes(str(tmp_path / "m.meta")) == node(b"a")
    assert graph_def_bytes(tmp_path / "s.pb", tags=["train"]) == node(b"b")
    (tmp_path / "model").mkdir()
    (tmp_path / "s.pb").rename(tmp_path / "model" / "saved_model.pb")
    assert graph_def_bytes(tmp_path / "model", tags=["serve"]) == node(b"a")


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("x.pb", None, "No such file"),
        ("x.pb", b"", "has no graph"),
        ("x.pb", b"\x00\x01", "corrupt, or not a graph: a field has number 0"),
        ("x.pb", GRAPH[:1], "ends in the middle"),
        ("x.pb", b"\x0a\x7fabc", "ends in the middle"),
        ("x.pb", b"\xff" * 11, "longer than 10 bytes"),
        ("x.pb", b"\x0b", "wire type 3"),
        (
            "x.pb",
            SAVED_MODEL,
            "x.pb: there are 2 meta graphs, but .* needs one. .* tags: serve; train",
        ),
        ("x.h5", b"", "unsupported file type"),
        ("x.pbtxt", b"hello", "not a GraphDef, MetaGraphDef or SavedModel"),
        ("x.pbtxt", b"\xff", "invalid start byte"),
    ],
)
def test_bad_files_are_errors_that_name_the_file(
    tmp_path: Path, name: str, data: bytes | None, sentence: str
) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(AnalysisError, match=sentence) as caught:
        graph_def_bytes(tmp_path / name)
    assert name in str(caught.value)


def test_huge_and_special_files_are_refused_unread(tmp_path: Path) -> None:
    huge = tmp_path / "huge.pb"
    with huge.open("wb") as file:
        file.truncate(2**31)
    with pytest.raises(AnalysisError, match="has 2147483648 bytes; the maximum is"):
        graph_def_bytes(huge)
    endless = tmp_path / "endless.pb"
    endless.symlink_to("/dev/zero")
    with pytest.raises(AnalysisError, match="not a regular file"):
        graph_def_bytes(endless)
    with pytest.raises(AnalysisError, match=r"has no saved_model\.pb"):
        graph_def_bytes(tmp_path)
    with pytest.raises(AnalysisError, match="cannot read a graph from a int"):
        graph_def_bytes(7)


@given(st.binary(max_size=60))
@settings(max_examples=150)
def test_any_bytes_are_a_graph_or_an_analysis_error(data: bytes) -> None:
    with contextlib.suppress(AnalysisError):
        assert graph_def_bytes(data)


REAL_OBJECTS = """
import sys
import tensorflow as tf
from graph_analyzer import AnalysisError
from graph_analyzer.sources import graph_def_bytes

def ops(graph, **more):
    parsed = tf.compat.v1.GraphDef.FromString(graph_def_bytes(graph, **more))
    return sorted(node.op for node in parsed.node)

def refusal(graph):
    try:
        return f"accepted: {graph_def_bytes(graph)}"
    except AnalysisError as error:
        return str(error)

graph = tf.Graph()
with graph.as_default():
    tf.constant(1.0, name="one") + tf.constant(2.0, name="two")
expected = ["AddV2", "Const", "Const"]
assert ops(graph) == ops(graph.as_graph_def()) == expected
tf.io.write_graph(graph, sys.argv[1], "g.pbtxt")
tf.io.write_graph(graph, sys.argv[1], "g.pb", as_text=False)
assert ops(sys.argv[1] + "/g.pbtxt") == ops(sys.argv[1] + "/g.pb") == expected
with graph.as_default():
    tf.compat.v1.train.export_meta_graph(sys.argv[1] + "/g.meta")
assert ops(sys.argv[1] + "/g.meta") == expected

@tf.function(autograph=False)
def double(x):
    return x + x

assert "0 concrete functions" in refusal(double)
traced = double.get_concrete_function(tf.TensorSpec([2], tf.float32))
assert ops(double) == ops(traced) == ["AddV2", "Identity", "Placeholder"], ops(traced)
double.get_concrete_function(tf.TensorSpec([3], tf.float32))
assert "2 concrete functions" in refusal(double)
module = tf.Module()
module.double = double
tf.saved_model.save(module, sys.argv[1] + "/saved")
assert "StatefulPartitionedCall" in ops(sys.argv[1] + "/saved", tags=["serve"])
with open(sys.argv[1] + "/bad.pbtxt", "w") as file:
    file.write("node { name: 7 }")
assert "not a GraphDef in text form" in refusal(sys.argv[1] + "/bad.pbtxt")
print("all", end="")
"""


def test_real_objects_and_files_of_tensorflow(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", REAL_OBJECTS, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": root, "TF_CPP_MIN_LOG_LEVEL": "3"}
    ran = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=patient(50)
    )
    assert ran.stdout == "all", ran.stderr


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GiB", 2**32), ("1.5K", 1536), ("2MB", 2_000_000), (" 7 ", 7), ("1 tib", 2**40), (9, 9)],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "4 GB/s", "1e9", "9" * 80, -1, 2**70, True])
def test_bad_sizes_are_errors(text: Any) -> None:
    with pytest.raises(AnalysisError):
        parse_size(text)


def test_bandwidths() -> None:
    same = ("100Gbit", "100Gbps", "100 Gbit/s", "100Gb/s", "12.5GB/s", "12.5GB")
    assert {parse_bandwidth(text) for text in same} == {12.5e9}
    assert parse_bandwidth("1GiB/s") == 2**30
    for bad in ("100", "0Gbit", "fast", "1Gbits", ""):
        with pytest.raises(AnalysisError):
            parse_bandwidth(bad)


def test_numbers_are_written_with_the_unit_that_fits() -> None:
    assert [format_bytes(n) for n in (None, 0, 1023, 1024, 2**20 - 1, 12_845_056)] == [
        *("?", "0 B", "1023 B", "1.00 KiB", "1.00 MiB", "12.25 MiB")
    ]
    assert [format_seconds(s) for s in (2, 0.9999999, 0.0123, 4.5e-6)] == [
        *("2.00 s", "1.00 s", "12.30 ms", "4.50 µs")
    ]
