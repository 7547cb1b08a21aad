"""The commands as a shell sees them: exit codes, what is on stdout, what is on stderr."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess
from typing import IO

import pytest
import tensorflow as tf

from graph_analyzer import AnalysisError, Plan
from graph_analyzer.cli import main
from graph_analyzer.options import read_plan
from tests.graph_analyzer.test_input import GRAPH
from tests.graph_analyzer.test_plan import BIAS, SAMPLE, WEIGHT
from tests.support.deadlines import patient

pytestmark = pytest.mark.timeout(60)

ROOT = str(Path(__file__).parents[2])
ENVIRONMENT = os.environ | {"PYTHONPATH": ROOT, "NO_COLOR": "1"}


def python(*words: str, stdout: IO[bytes] | int = subprocess.PIPE) -> CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        env=ENVIRONMENT,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=patient(60),
    )


def run(*words: object, module: str = "graph_analyzer") -> CompletedProcess[str]:
    return python("-m", module, *map(str, words))


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(SAMPLE))
    return path


def valid(text: str) -> dict:
    """The JSON, after the schema had its say."""
    jsonschema = pytest.importorskip("jsonschema")
    from graph_analyzer import schema

    document: dict = json.loads(text)
    jsonschema.Draft202012Validator(schema()).validate(document)
    return document


def test_the_schema_itself_is_valid_and_refuses_what_is_no_answer() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    from graph_analyzer import schema

    jsonschema.Draft202012Validator.check_schema(schema())
    validator = jsonschema.Draft202012Validator(schema())
    assert not validator.is_valid({})
    assert not validator.is_valid(SAMPLE | {"nodes": -1})
    assert not validator.is_valid(SAMPLE | {"edges": [SAMPLE["edges"][0] | {"mode": "fast"}]})


def test_a_file_alone_is_planned(plan: Path) -> None:
    ran = run(plan)
    assert (ran.returncode, ran.stderr) == (0, "")
    for title in ("Edges", "Memory per task", "Bytes per link and step", "Totals"):
        assert title in ran.stdout
    assert run("--rows", 0, plan).stdout == run("plan", "--rows", 0, plan).stdout


def test_json_is_the_whole_of_stdout_and_can_be_read_again(plan: Path) -> None:
    ran = run(plan, "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert valid(ran.stdout) == SAMPLE
    assert Plan.from_json(ran.stdout).as_dict() == SAMPLE


def test_a_picture_is_written_beside_the_answer(plan: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    ran = run(plan, "--json", "-o", tmp_path / "out.svg")
    assert valid(ran.stdout) == SAMPLE
    assert "</svg>" in (tmp_path / "out.svg").read_text()


def test_capacity_for_several_clusters() -> None:
    words = ["capacity", "--size", "512MiB", "--workers", "8,64", "--servers", 2]
    ran = run(*words, "--bandwidth", "100Gbit", "--json")
    rows = valid(ran.stdout)["capacity"]
    assert [(row["workers"], row["servers"]) for row in rows] == [(8, 2), (64, 2)]
    # 64 workers x 256 MiB = 17179869184 bytes at 12.5e9 a second
    assert rows[1]["seconds_overlapped"] == pytest.approx(1.37438953472)
    table = run(*words, "--batch", 32)
    assert table.returncode == 0
    assert "samples/s" in table.stdout


def test_capacity_with_simulated_steps(plan: Path) -> None:
    words = ["capacity", plan, "--workers", "1,4", "--bandwidth", "8Gbit", "--compute", "3ms"]
    words += ["--latency", "1us", "--message-time", "2us", "--apply", "9ms", "--steps", 20]
    alone, four = (row["simulated"] for row in valid(run(*words, "--json").stdout)["capacity"])
    port = (WEIGHT + BIAS) / 1e9 + 2 * 2e-6
    assert alone["p99"] == pytest.approx(2 * (port + 1e-6) + 3e-3 + 9e-3)
    assert four["p50"] == pytest.approx(2 * (4 * port + 1e-6) + 3e-3 + 36e-3)
    assert (alone["bound"], four["bound"]) == ("worker port", "server port")
    for scheme in ("asynchronous", "mirrored"):
        times = ["--scheme", scheme, "--sigma", 0.3, "--seed", 7]
        found = valid(run(*words, *times, "--json").stdout)["capacity"]
        assert found == valid(run(*words, *times, "--json").stdout)["capacity"]
        assert found[1]["simulated"]["p99"] > found[1]["simulated"]["p50"]
    table = run(*words).stdout
    assert "20 simulated steps, synchronous; computation 3.00 ms" in table
    assert "apply" in table
    assert "simulated" not in run(*words[:6]).stdout


def test_capacity_from_measured_steps() -> None:
    words = ["capacity", "--size", "1MiB", "--workers", 32, "--measured", "4=16ms,8=24ms", "--json"]
    row = valid(run(*words).stdout)["capacity"][0]
    assert row["simulated"]["compute"] == pytest.approx(8e-3)
    assert row["bandwidth"] == pytest.approx(2**20 / 1e-3)
    assert row["simulated"]["p50"] == pytest.approx(72e-3)


def test_capacity_of_a_plan(plan: Path) -> None:
    row = valid(run("capacity", plan, "--workers", 2, "--servers", 2, "--json").stdout)
    assert row["capacity"][0]["shards"][0] == WEIGHT


def test_a_plan_without_crossing_tensors_is_a_warning(plan: Path) -> None:
    assert run(plan).stderr == ""
    plan.write_text(json.dumps(SAMPLE | {"edges": [], "tasks": []}))
    ran = run(plan, "--json")
    assert (ran.returncode, valid(ran.stdout)["edges"]) == (0, [])
    assert ran.stderr.startswith("warning: no tensor crosses between tasks: all ")
    assert "Place variables or operations on a second task" in ran.stderr


SCRIPT = """
import tensorflow as tf
weights = tf.Variable(tf.zeros([64, 64]))

@tf.function(input_signature=[])
def step():
    with tf.device("/job:worker/task:0"):
        return weights + 1.0
step.get_concrete_function()
"""


def test_a_function_of_a_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "broken.py").write_text("1 / 0")
    cluster = ("-c", "ps=1,worker=1", "--default-device", "/job:ps/task:0")
    plan = valid(run(f"{tmp_path}/train.py:step", *cluster, "--json").stdout)
    assert [edge["shape"] for edge in plan["edges"]] == [[64, 64], [64, 64]]
    ran = run(f"{tmp_path}/train.py:nothing", *cluster)
    assert (ran.returncode, "has nothing with the name 'nothing'" in ran.stderr) == (2, True)
    ran = run(f"{tmp_path}/broken.py:step", *cluster)
    assert (ran.returncode, "ZeroDivisionError: division by zero" in ran.stderr) == (2, True)


def test_a_graph_without_tasks_names_what_would_help(tmp_path: Path) -> None:
    with tf.Graph().as_default() as graph:
        tf.constant(1.0)
    (tmp_path / "graph.pb").write_bytes(graph.as_graph_def().SerializeToString())
    ran = run(tmp_path / "graph.pb", "-c", "ps=1")
    assert (ran.returncode, ran.stdout) == (2, "")
    for words in (".keras", "train.py:NAME", "--default-device"):
        assert words in ran.stderr
    assert ran.stderr.count("\n") == 1, "not a line of TensorFlow's"


def test_a_saved_keras_model(tmp_path: Path) -> None:
    """Its variables are on the parameter servers in turn. It needs no cluster."""
    path = tmp_path / "model.keras"
    layers = [tf.keras.Input([8]), tf.keras.layers.Dense(32), tf.keras.layers.Dense(2)]
    tf.keras.Sequential(layers).save(path)
    plan = read_plan(path, "ps=2,worker=1", None, None, "", None)
    assert {variable.task for variable in plan.variables} == {f"/job:ps/task:{i}" for i in (0, 1)}
    weights = {(edge.source, edge.shape) for edge in plan.tensors if "ps" in edge.source}
    assert {shape for _, shape in weights} == {(8, 32), (32,), (32, 2), (2,)}
    gradients = {(edge.destination, edge.shape) for edge in plan.tensors if "ps" not in edge.source}
    assert gradients == weights
    path.write_bytes(b"PK")
    with pytest.raises(AnalysisError, match=r"model\.keras: "):
        read_plan(path, "ps=2,worker=1", None, None, "", None)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["missing.pb", "-c", "ps=1"], "missing.pb: No such file"),
        (["graph.pb"], "a graph needs a cluster: add --cluster ps=1,worker=2; without one,"),
        (["graph.pb", "-o", "out.svg"], "--output is for edges between tasks: add --cluster"),
        (["graph.pb", "--arena-limit", "4GiB"], "--arena-limit is for edges between tasks: add"),
        (["graph.pb", "--inline-limit", "0"], "--inline-limit is for edges between tasks: add"),
        (["graph.pb", "--default-device", "/job:ps"], "--default-device is for edges between"),
        (["graph.pb", "-c", "ps=1", "--ranks", "8"], "--ranks is for what ranks reduce, and"),
        (["graph.pb", "-c", "ps=1", "--steps", "8"], "--steps is for what ranks reduce, and"),
        (["graph.pb", "-c", "ps=1", "--tags", "serve"], "tags choose a meta graph of a SavedModel"),
        (["plan.json", "--ranks", "8"], "--ranks is for what ranks reduce, and"),
        (["plan.json", "-c", "ps=1"], "--cluster is for the analysis of a graph, and a .json file"),
        (["plan.json", "--arena-limit", "1"], "--arena-limit is for the analysis of a graph"),
        (["plan.json", "--tags", "serve"], "--tags is for the analysis of a graph"),
        (["capacity", "plan.json", "-c", "ps=1"], "--cluster is for the analysis of a graph"),
        (["graph.pb", "--ranks", "0"], "--ranks"),
        (["graph.pb", "-c", "ps"], "the cluster has an invalid part 'ps'"),
        (["graph.pb", "-c", "ps=1", "--arena-limit", "much"], "'much' is not a size"),
        (["corrupt.pb", "-c", "ps=1"], "corrupt, or not a graph"),
        (["cli.py", "-c", "ps=1"], "what a script calls NAME: train.py:NAME"),
        (["corrupt.json"], "not a plan"),
        (["plan.json", "-o", "out.gif"], "ends in .png or .svg"),
        (["plan.json", "--rows", "-1"], "--rows"),
        (["--json"], "Missing argument 'GRAPH'"),
        (["plan.json", "--nonsense"], "No such option"),
        (["capacity"], "either a graph, or the size of the parameters with --size"),
        (["capacity", "--size", "1MiB", "-c", "ps=1"], "--cluster is for the analysis of a graph"),
        (["capacity", "--size", "1MiB", "--tags", "serve"], "--tags is for the analysis of a"),
        (["capacity", "--size", "1MiB", "--default-device", "/job:ps"], "--default-device is for"),
        (["capacity", "--size", "1MiB", "--seed", "0"], "--seed is for simulated steps: omit it"),
        (["capacity", "plan.json", "--message-time", "1us"], "--message-time is for simulated"),
        (["capacity", "--size", "nan"], "is not a size"),
        (["capacity", "--size", "1MiB", "--workers", "8,x"], "--workers '8,x'"),
        (["capacity", "--size", "1MiB", "--workers", "0"], "workers: 0"),
        (["capacity", "--size", "1MiB", "--bandwidth", "quick"], "'quick' is not a bandwidth"),
        (["capacity", "--size", "1MiB", "--compute", "3"], "unknown unit ''; use s, ms, us or ns"),
        (["capacity", "--size", "1MiB", "--compute", "-3ms"], "'-3ms' is not a time"),
        (["capacity", "--size", "1MiB", "--compute", "3ms", "--sigma", "nan"], "sigma: nan"),
        (
            ["capacity", "--size", "1MiB", "--compute", "3ms", "--scheme", "eager"],
            "use one of synchr",
        ),
        (
            ["capacity", "--size", "1MiB", "--compute", "3ms", "--steps", "999999999"],
            "at most 625000",
        ),
        (["capacity", "--size", "1MiB", "--measured", "4:3ms"], "give workers and step times"),
        (["capacity", "--size", "1MiB", "--measured", "4=3ms,x=4ms"], "--measured 'x'"),
        (["capacity", "--size", "1MiB", "--measured", "4=3ms"], "at least two numbers"),
        (["capacity", "--size", "1MiB", "--measured", "4=3ms", "--compute", "3ms"], "omit them"),
        (
            ["capacity", "--size", "1MiB", "--measured", "4=3ms", "--servers", "1,2"],
            "one number of",
        ),
        (["capacity", "--size", "1MiB", "--measured", "4=3ms", "--sigma", "1"], "without --sigma"),
    ],
)
def test_bad_input_is_exit_code_2_and_a_sentence(
    plan: Path,
    words: list[str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (plan.parent / "graph.pb").write_bytes(GRAPH)
    (plan.parent / "corrupt.pb").write_bytes(b"\x00")
    (plan.parent / "corrupt.json").write_text("{")
    (plan.parent / "cli.py").write_text("")
    monkeypatch.chdir(plan.parent)
    monkeypatch.setattr(sys, "argv", ["graph_analyzer", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "")
    assert sentence in said.err
    assert len(said.err) < 500


def test_a_full_disk_is_said(plan: Path) -> None:
    with open("/dev/full", "wb") as full:
        ran = python("-m", "graph_analyzer", str(plan), "--json", stdout=full)
    assert ran.returncode == 2
    assert ran.stderr == "error: cannot write the answer: No space left on device\n"


INTERRUPTED = """
import os, signal, graph_analyzer.native
graph_analyzer.native.analyze = lambda *request: os.kill(os.getpid(), signal.SIGINT)
from graph_analyzer.cli import main
main()
"""


def test_ctrl_c_is_exit_code_130(tmp_path: Path) -> None:
    (tmp_path / "graph.pb").write_bytes(GRAPH)
    ran = python("-c", INTERRUPTED, str(tmp_path / "graph.pb"), "-c", "ps=1")
    assert ran.returncode == 130
    assert "Traceback" not in ran.stderr
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_rdma_transport_has_the_same_commands(plan: Path) -> None:
    module = "rdma_transport.cli"
    assert valid(run("plan", plan, "--json", module=module).stdout) == SAMPLE
    ran = run("capacity", "--size", "1MiB", "--json", module=module)
    assert valid(ran.stdout)["capacity"][0]["model_bytes"] == 2**20
    ran = run("plan", "missing.pb", "-c", "ps=1", module=module)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("error: missing.pb")
