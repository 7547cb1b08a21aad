"""What the ranks of real training steps exchange: `steps.py` makes them on two ranks."""

import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from rich.console import Console
from tensorflow.core.framework import attr_value_pb2

from graph_analyzer import AnalysisError, Reduction, Reductions, reductions, report
from rdma_transport.exchange import ATTRIBUTE, Exchange
from tests.graph_analyzer.test_cli import run, valid
from tests.graph_analyzer.test_report import shown
from tests.support.deadlines import patient

pytestmark = pytest.mark.timeout(240)

ROOT = Path(__file__).parents[2]
LAYERS, ROWS, WIDTH = 4, 8, 512  # of steps.py
MATRIX, BIAS = 4 * WIDTH * WIDTH, 4 * WIDTH
FACTORS = 4 * ROWS * 2 * WIDTH
MATRICES = [[f"matrix_{i}"] for i in reversed(range(LAYERS))]
BIASES = [f"bias_{i}" for i in range(LAYERS)]


def launched(*words: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Let two ranks run a program of Python; keep what rank 0 prints."""
    launcher = ["-m", "rdma_transport", "run", *options, "-n", "2", "--quiet-ranks", "--"]
    ran = subprocess.run(
        [sys.executable, *launcher, sys.executable, *words],
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=patient(200),
    )
    ran.stdout = "\n".join(line.removeprefix("[0] ") for line in ran.stdout.splitlines())
    return ran


@pytest.fixture(scope="module")
def steps() -> dict[str, dict[str, Any]]:
    ran = launched(str(Path(__file__).with_name("steps.py")))
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return {name: valid(json.dumps(each))["reductions"] for name, each in found.items()}


def of_matrices(step: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of single matrices, which come in the order of the backward pass."""
    found = [each for each in step["operations"] if each["what"][0].startswith("matrix")]
    assert [each["what"] for each in found] == MATRICES
    starts = [each["start"] for each in found]
    assert starts == sorted(set(starts)), "none waits for another one"
    assert 0 < starts[0] < 0.5 < starts[-1] < 1
    assert {each["bytes"] for each in found} == {MATRIX}
    return found


@pytest.mark.parametrize(
    ("case", "scheme", "reason", "sent"),
    [
        ("dense", "dense", "as set", MATRIX),
        ("factors", "factors", f"as set: a product of {ROWS} rows", FACTORS),
        ("bf16", "bf16", "as set", MATRIX // 2),
        ("fp16", "fp16", "as set", MATRIX // 2),
        ("compressed", "fp16", "as set", MATRIX // 2),
        ("slow network", "factors", "a product of 8 rows: factors are faster up to ", FACTORS),
        ("fast network", "dense", "a product of 8 rows: a sum is faster above 0 rows", MATRIX),
        ("unknown rows", "factors", "a product: factors are faster up to ", None),
        ("too many rows", "dense", "a product of 512 rows: factors are faster up to ", MATRIX),
        ("parallel", "dense", "as set", MATRIX),
        ("nested", "dense", "as set", MATRIX),
    ],
)
def test_schemes(
    steps: dict[str, dict[str, Any]], case: str, scheme: str, reason: str, sent: int | None
) -> None:
    for each in of_matrices(steps[case]):
        assert (each["scheme"], each["sent"], each["within"]) == (scheme, sent, None)
        assert each["reason"].startswith(reason)


def test_small_gradients_are_reduced_together(steps: dict[str, dict[str, Any]]) -> None:
    step = steps["bf16"]
    (small,) = (each for each in step["operations"] if each["what"] == BIASES)
    assert (small["operation"], small["scheme"], small["start"]) == ("all_reduce", "bf16", 1)
    assert (small["bytes"], small["sent"]) == (LAYERS * BIAS, LAYERS * BIAS // 2)
    assert step["bytes"] == LAYERS * (MATRIX + BIAS) == 2 * step["sent"]


def test_the_rows_of_a_table_are_gathered(steps: dict[str, dict[str, Any]]) -> None:
    found = steps["rows"]["operations"]
    assert [each["what"] for each in found] == [["table"], ["table"]]
    assert {each["scheme"] for each in found} == {"gathered rows"}
    sizes = {each["reason"]: each["sent"] for each in found}
    assert sizes == {
        "values of tf.IndexedSlices": 4 * ROWS * WIDTH,
        "indices of tf.IndexedSlices": 4 * ROWS,
    }


def test_what_ranks_tell_each_other_is_listed_too(steps: dict[str, dict[str, Any]]) -> None:
    outputs, *others = steps["parallel"]["operations"]
    assert outputs["what"] == ["output of layers", "a comparison of ranks"]
    assert (outputs["operation"], outputs["start"]) == ("all_gather", 0)
    assert outputs["bytes"] == 4 * ROWS // 2 * WIDTH + 8
    assert others[-1]["what"] == [*BIASES, "a comparison of ranks"]
    rows = steps["slow network"]["operations"][0]
    assert (rows["what"], rows["start"]) == (["rows of products"], 0)


@pytest.mark.parametrize(("case", "scheme"), [("shared", "dense"), ("shared factors", "factors")])
def test_a_gradient_of_two_variables_is_sent_once(
    steps: dict[str, dict[str, Any]], case: str, scheme: str
) -> None:
    found = [each for each in steps[case]["operations"] if each["scheme"] == scheme]
    alone = [each["what"] for each in found if each["what"][0].startswith("matrix")]
    assert alone == [["matrix_0 and matrix_1"]] * 2
    small = [each for each in steps[case]["operations"] if each["what"][0].startswith("bias")]
    assert [each["what"][0] for each in small] == ["bias_0 and bias_1"] * 2
    assert small[0]["bytes"] == BIAS


def test_graphs_of_sessions(steps: dict[str, dict[str, Any]]) -> None:
    found = steps["session"]["operations"]
    assert [each["what"] for each in found] == [["last"], ["first"]]
    assert found[0]["start"] < found[1]["start"] == 1


def test_what_does_not_run_once_in_each_step(steps: dict[str, dict[str, Any]]) -> None:
    assert {each["within"] for each in steps["accumulated"]["operations"]} == {"conditional"}
    within = [each["within"] for each in steps["nested"]["operations"]]
    assert sorted(map(str, within)) == ["None"] * (LAYERS + 1) + ["loop"]


def test_more_ranks_send_more(steps: dict[str, dict[str, Any]]) -> None:
    many = steps["dense of 8"]
    assert (many["ranks"], many["traced_by"]) == (8, 2)
    assert many["bytes"] == steps["dense"]["bytes"]
    assert many["sent"] == 2 * many["bytes"] * 7 // 8
    assert steps["unknown rows"]["unknown"] == LAYERS


# --- Graphs made by hand ---


def exchanging(text: str | bytes) -> tf.Graph:
    """A graph with an operation that says what it exchanges."""
    with tf.Graph().as_default() as graph:
        node = tf.identity(tf.zeros([2]), name="node").op
        value = text.encode() if isinstance(text, str) else text
        node._set_attr(ATTRIBUTE, attr_value_pb2.AttrValue(s=value))
    return graph


def exchange(**changes: Any) -> str:
    known: dict[str, Any] = {"ranks": 4, "what": ("w",), "size": 10, "given": 10}
    return Exchange(**known | {"scheme": "dense", "why": ""} | changes).to_text()


def test_a_graph_without_a_backward_pass() -> None:
    (found,) = reductions(exchanging(exchange())).operations
    assert (found.start, found.what) == (None, ("w",))


def test_a_serialized_graph_says_the_same(tmp_path: Path) -> None:
    graph = exchanging(exchange())
    path = tmp_path / "graph.pb"
    path.write_bytes(graph.as_graph_def().SerializeToString())
    assert reductions(path) == reductions(graph)


def test_of_two_that_exclude_each_other_the_expected_one_counts() -> None:
    assert len(reductions(exchanging(exchange(expected=True))).operations) == 1
    with pytest.raises(AnalysisError, match="a graph needs a cluster"):
        reductions(exchanging(exchange(expected=False)))


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "3", "{}", b"\xff", '{"what": 3}'),
        *(exchange(ranks=0), exchange(size=-1), exchange(given="1"), exchange(what=(1,))),
    ],
)
def test_a_damaged_graph(text: str | bytes) -> None:
    with pytest.raises(AnalysisError, match="corrupt, or not a graph"):
        reductions(exchanging(text))


@pytest.mark.parametrize("ranks", [0, -1, 2**17])
def test_bad_numbers_of_ranks(ranks: int) -> None:
    with pytest.raises(AnalysisError, match=f"ranks: {ranks}"):
        reductions(exchanging(exchange()), ranks=ranks)


# --- Functions that were not traced ---


def test_a_function_without_arguments_is_traced() -> None:
    with pytest.raises(AnalysisError, match="a graph needs a cluster"):
        reductions(tf.function(lambda: tf.zeros([])))


def test_a_function_with_arguments_must_have_been_traced() -> None:
    with pytest.raises(AnalysisError, match="traced = step"):
        reductions(tf.function(lambda x: x))


def test_of_a_function_that_creates_variables_the_later_steps_count() -> None:
    created: list[tf.Variable] = []

    @tf.function
    def step() -> Any:
        if not created:
            created.append(tf.Variable(tf.zeros([2])))
        numbers = tf.identity(created[0] + 1.0, name="numbers")
        value = attr_value_pb2.AttrValue(s=exchange().encode())
        numbers.op._set_attr(ATTRIBUTE, value)
        return numbers

    step()
    assert len(step._list_all_concrete_functions()) == 2
    assert len(reductions(step).operations) == 1


def test_a_function_that_cannot_be_traced() -> None:
    @tf.function
    def fails() -> None:
        raise KeyError("mistake")

    with pytest.raises(AnalysisError, match="tracing the function failed: KeyError: 'mistake'"):
        reductions(fails)


# --- The table ---


def reduction(**changes: Any) -> Reduction:
    known: dict[str, Any] = {"what": ("w",), "operation": "all_reduce", "scheme": "dense"}
    known |= {"reason": "as set", "bytes": 2048, "sent": 1024, "start": 0.356, "within": None}
    return Reduction(**known | changes)


def test_the_table() -> None:
    many = tuple(f"layer[{i}]" for i in range(30))
    found = Reductions(
        3,
        3,
        (
            reduction(),
            reduction(what=many, within="conditional", start=1.0),
            reduction(bytes=None, sent=None, start=None, reason=""),
        ),
    )
    table = report.reduction_table(found)
    assert str(table.title) == "Reductions of a step of 3 ranks"
    first, second, third, total = shown(table)
    assert first == ["1", "w", "1", "2.00 KiB", "dense", "as set", "1.00 KiB", "36 %"]
    assert second[1:3] == ["layer[0] … layer[29]", "30"]
    assert second[5:] == ["as set, not in each step", "1.00 KiB", "100 %"]
    assert third[3:] == ["?", "dense", "", "?", "–"]
    assert total == ["", "all", "32", "4.00 KiB", "", "1 of unknown size", "2.00 KiB", ""]
    table = report.reduction_table(Reductions(8, 2, (reduction(),)))
    assert str(table.title) == "Reductions of a step of 8 ranks, with the schemes of 2"


def printed(found: Reductions, rows: int) -> list[str]:
    console = Console(width=200, record=True, file=io.StringIO())
    report.print_reductions(found, console, rows)
    return console.export_text().splitlines()


def test_the_largest_rows_are_shown_in_the_order_of_the_step() -> None:
    sizes = {"a": 100, "b": 300, "c": None, "d": 200}
    operations = (reduction(what=(name,), bytes=size) for name, size in sizes.items())
    found = Reductions(2, 2, tuple(operations))
    few, whole = printed(found, 2), printed(found, 0)
    shown_rows = [line.split()[1:4:2] for line in few if " dense " in line]
    assert shown_rows == [["2", "b"], ["4", "d"]]
    assert "2 smaller reductions are not shown (--rows 0 shows all)" in few
    assert "1 smaller reduction is not shown (--rows 0 shows all)" in printed(found, 3)
    assert [line for line in few if " all " in line] == [line for line in whole if " all " in line]
    assert len([line for line in whole if " dense " in line]) == 4
    assert "not shown" not in "".join(whole)


# --- The command ---

TRAIN = """
import tensorflow as tf
import rdma_transport.horovod as hvd

hvd.init()
weights = tf.Variable(tf.ones([4, 4]), name="weights")

@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.ones([2, 4]) @ weights)
    return hvd.DistributedGradientTape(tape).gradient(loss, weights)
"""
MODEL = """
import keras

layers = [keras.layers.Dense(4, name="hidden"), keras.layers.Dense(2, name="last")]
model = keras.Sequential([keras.Input([3]), *layers])
"""


def plan(script: Path, name: str, *words: str) -> list[str]:
    return ["-m", "rdma_transport", "plan", f"{script}:{name}", *words]


def test_the_command_in_a_job_of_two_ranks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    ran = launched(*plan(script, "step", "--ranks", "4", "--json"))
    assert ran.returncode == 0, ran.stderr
    found = valid(ran.stdout)["reductions"]
    assert (found["ranks"], found["traced_by"]) == (4, 2)
    (only,) = found["operations"]
    assert (only["what"], only["bytes"], only["sent"]) == (["weights"], 64, 96)


def test_the_command_on_a_serialized_graph(tmp_path: Path) -> None:
    path = tmp_path / "graph.pb"
    path.write_bytes(exchanging(exchange()).as_graph_def().SerializeToString())
    ran = run(path, "--ranks", 64)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("Reductions of a step of 64 ranks, with the schemes of 4\n")


def test_the_command_in_one_process(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    ran = subprocess.run(
        [sys.executable, *plan(script, "step")],
        env=os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=patient(60),
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "rdma-transport run -n 2 -- rdma-transport plan train.py:step" in ran.stderr


def test_a_keras_model_of_a_script_for_one_process(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(MODEL)
    ran = launched(*plan(script, "model", "--json"), options=("--data-parallel",))
    assert ran.returncode == 0, ran.stderr
    found = valid(ran.stdout)["reductions"]["operations"]
    names = [name for each in found for name in each["what"]]
    sizes = {"hidden/kernel": 12, "hidden/bias": 4, "last/kernel": 8, "last/bias": 2}
    assert [name for name in names if name.endswith(tuple(sizes))] == [
        f"sequential/{name}" for name in sizes
    ]
    together = found[-1]
    assert together["bytes"] > 4 * math.fsum(sizes.values())
    assert together["start"] == 1
