"""Each shell command of the documentation works as it is written, or is listed with the reason.

A command that a page shows for the first time fails here, unless it is one of this project's own
that runs as it is: give it a shorter form or a reason in tests/support/listed_commands.py.
"""

import ast
import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from bench.support.cluster import Cluster, free_port
from examples import launch
from rdma_transport.command_line import invoke
from tests.support import forked, pages
from tests.support.deadlines import patient
from tests.support.listed_commands import INSTEAD, NOT_RUN, OTHER_HOST
from tests.support.observing import MAIN, job
from tests.support.scripts import ForkedCluster
from tests.test_docs import command_of

pytestmark = [pytest.mark.timeout(60), pytest.mark.xdist_group("documented_commands")]
SECONDS = 50
COMMANDS = {command.text for command in pages.commands()}

LISTED = {text: reason for reason, texts in NOT_RUN.items() for text in texts}
SECOND = set(OTHER_HOST.values())
MAKE = [text for text in sorted(COMMANDS) if text.startswith("make ") and text not in LISTED]
RUN = sorted(COMMANDS - set(LISTED) - set(MAKE) - SECOND - set(OTHER_HOST))
OURS = ("rdma-transport", "python", ".venv/bin/python")
BUILT = ("ctest ", "CHAOS_SEED=17 build/debug/")
BY_A_SHELL = ("(umask 077; openssl", "cp examples/", ". ", *BUILT)
FIRST_PAGE = "docs/getting_started.md"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster({"a": 1, "b": 1}) as made:
        yield made


def model() -> bytes:
    """A SavedModel whose graph has an edge from a parameter server to a worker."""
    with tf.Graph().as_default() as graph:
        with tf.device("/job:ps/task:0"):
            weights = tf.compat.v1.get_variable("weights", [256, 256], use_resource=True)
        with tf.device("/job:worker/task:1"):
            tf.square(weights.read_value())
    document = SavedModel(saved_model_schema_version=1)
    document.meta_graphs.add().graph_def.CopyFrom(graph.as_graph_def())
    return bytes(document.SerializeToString())


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like a checkout, with the files that the commands name."""
    folder = tmp_path_factory.mktemp("checkout")
    for path in pages.ROOT.iterdir():
        if path.name != ".git":
            (folder / path.name).symlink_to(path)
    (folder / "model").mkdir()
    (folder / "model" / "saved_model.pb").write_bytes(model())
    tf.keras.Sequential([tf.keras.Input([4]), tf.keras.layers.Dense(2)]).save(
        folder / "model.keras"
    )
    (script,) = [
        block
        for block in pages.blocks("docs/programming.md", "python")
        if "Communicator.connect()" in block
    ]
    (folder / "script.py").write_text(script)
    (folder / "job.py").write_text(script)
    (folder / "program.py").write_text(
        "from mpi4py import MPI\nassert MPI.COMM_WORLD.allreduce(1) == 2\n"
    )
    (folder / "job.secret").write_text("0123456789abcdef" * 4)
    (folder / "job.secret").chmod(0o600)
    words = ("plan", "model/", "--cluster", "ps=1,worker=2", "--json")
    ran = forked.run(["-c", MAIN, *words], timeout=SECONDS, directory=folder)
    (folder / "plan.json").write_text(ran.stdout)
    return folder


def as_a_newcomer(script: str, seconds: int = SECONDS) -> subprocess.CompletedProcess[str]:
    """Run it in the checkout by a shell that knows of no .venv."""
    return subprocess.run(
        ["bash", "-ec", script],
        cwd=pages.ROOT,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": os.environ.get("HOME", "/")},
        capture_output=True,
        text=True,
        timeout=patient(seconds),
    )


def set_up() -> str:
    """What the first page says to type in each shell, after `make venv`."""
    first, then = pages.in_block(FIRST_PAGE, pages.blocks(FIRST_PAGE, "sh")[0])
    assert first.text == "make venv"
    return then.text


@functools.cache
def path_of_a_newcomer() -> str:
    ran = as_a_newcomer(f'{set_up()}; echo "$PATH"')
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def environment(folder: Path) -> dict[str, str]:
    """What a reader of the first page has, without the settings of these tests."""
    return os.environ | {"PATH": path_of_a_newcomer(), "HOME": str(folder), "SLURM_JOB_ID": "7"}


def here(text: str, places: dict[str, str]) -> str:
    """The text with places of this test for those of the pages."""
    names = {"/etc/job.secret": "job.secret", "GRAPH": "model/", "node1": "127.0.0.1"} | places
    return re.sub("|".join(map(re.escape, names)), lambda found: names[found[0]], text)


def started(text: str, variables: dict[str, str], folder: Path, log: Path) -> forked.Process:
    """Begin one of our own commands."""
    program, *words = shlex.split(text)
    arguments = ["-c", MAIN, *words] if program == "rdma-transport" else words
    with log.open("a") as file:
        return forked.Process(arguments, variables, stdout=file, stderr=file, directory=folder)


def launched(text: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run an example here; its tasks start as all do in tests: with TensorFlow imported."""

    class Launched(ForkedCluster):
        def __init__(self, *arguments: Any, plain: str, **keywords: Any) -> None:
            super().__init__(*arguments, **keywords)

    monkeypatch.setattr(launch, "LocalCluster", Launched)
    # It has graphs of its own, and tests that follow here run eagerly.
    monkeypatch.setattr(tf.compat.v1, "disable_eager_execution", lambda: None)
    monkeypatch.setattr(sys, "argv", shlex.split(text.removeprefix("python -m ")))
    return invoke(launch.app)


@pytest.mark.parametrize("text", RUN)
def test_it_works(
    text: str,
    checkout: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    run = INSTEAD.get(text, text)
    variables, log = environment(checkout), tmp_path / "log"
    with ExitStack() as stack:
        places = {}
        if re.search("status|metrics|timeline|--peer", run):
            cluster = request.getfixturevalue("cluster")
            stack.enter_context(job(cluster))
            places["host:2222"] = cluster.target("a").removeprefix("grpc://")
        run = here(run, places)
        while exported := re.match(r"(RDMA_\w+)=(\S+) ", run):
            variables[exported[1]] = exported[2]
            run = run[exported.end() :]
        if run.startswith("python -m examples.launch "):
            monkeypatch.chdir(checkout)
            assert launched(run, monkeypatch) == 0
        elif run.startswith(OURS):
            process = started(run, variables, checkout, log)
            stack.callback(process.kill)
            assert process.wait(patient(SECONDS)) == 0, log.read_text()
        else:
            assert run.startswith(BY_A_SHELL), "run it here, or list it in listed_commands.py"
            built = checkout / "build/debug/tests/native"
            needed = (built / "chaos_test", built / "static_test")
            if run.startswith(BUILT) and not all(path.exists() for path in needed):
                pytest.skip("make test-native builds it")
            ran = subprocess.run(
                ["bash", "-ec", run],
                cwd=checkout,
                env=variables,
                capture_output=True,
                text=True,
                timeout=patient(SECONDS),
            )
            assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("text", OTHER_HOST)
def test_two_hosts_work(text: str, checkout: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    places = {"HOST": "127.0.0.1", "2222": str(free_port())}
    with ExitStack() as stack:
        processes = []
        for each in (OTHER_HOST[text], text):
            variables = environment(checkout)
            variables |= {"MASTER_PORT": places["2222"], "RDMA_TRANSPORT_LIBFABRIC_INTERFACE": "lo"}
            processes.append(started(here(each, places), variables, checkout, log))
            stack.callback(processes[-1].kill)
        for process in processes:
            assert process.wait(patient(SECONDS)) == 0, log.read_text()


@pytest.mark.timeout(160)  # several processes import TensorFlow, one after the other
def test_the_first_page_leads_to_its_programs() -> None:
    commands = [
        command.text
        for block in pages.blocks(FIRST_PAGE, "sh")[1:]
        for command in pages.in_block(FIRST_PAGE, block)
    ]
    programs = {text.split()[0] for text in commands} - {"cp", "sbatch"}
    assert programs == {"python", "rdma-transport"}
    numpy = next(text for text in commands if text.startswith("rdma-transport run "))
    lines = [set_up(), *(f"command -v {program}" for program in sorted(programs))]
    typed = "\n".join([*lines, "python -m examples.launch --help >/dev/null", numpy])
    ran = as_a_newcomer(typed, seconds=150)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    where = Path(sys.executable).parent
    assert ran.stdout.splitlines()[:2] == [str(where / program) for program in sorted(programs)]
    assert as_a_newcomer("command -v rdma-transport").returncode != 0


def test_files_that_the_first_page_names_are_there() -> None:
    for block in pages.blocks(FIRST_PAGE, "sh"):
        made: set[str] = set()
        for command in pages.in_block(FIRST_PAGE, block):
            *sources, last = shlex.split(command.text)[1:]
            if command.text.startswith("cp "):
                made.add(last)
            else:
                sources.append(last)
            files = {word for word in sources if re.search(r"\.(py|sh)$", word)}
            assert {file for file in files if not (pages.ROOT / file).exists()} <= made


def test_mirrored_workers_without_the_launcher(tmp_path: Path) -> None:
    (script,) = pages.blocks("docs/getting_started.md", "bash")
    shutil.copy(pages.ROOT / "examples/strategies/mirrored_loop.py", tmp_path)
    ran = subprocess.run(
        ["bash", "-ec", here(script, {"2222": str(free_port()), "2223": str(free_port())})],
        cwd=tmp_path,
        # Unbuffered, a line and its end are two writes: the two workers' could mix.
        env=environment(tmp_path) | {"RDMA_TRANSPORT_FALLBACK": "forbid", "PYTHONUNBUFFERED": ""},
        capture_output=True,
        text=True,
        timeout=patient(SECONDS),
    )
    assert ran.returncode == 0, ran.stderr
    assert "transport=shm (same host)" in ran.stderr
    losses = re.findall("^losses .*", ran.stdout, re.M)
    assert len(losses) == 2, ran.stdout + ran.stderr
    assert losses[0] == losses[1]


def made_by_ci() -> set[str]:
    """The targets that CI makes, and those that they need."""
    makefile = (pages.ROOT / "Makefile").read_text()
    needs = {
        target: names.split() for target, names in re.findall(r"^([\w-]+):(.*)$", makefile, re.M)
    }
    script = (pages.ROOT / ".ci" / "run").read_text()
    found: set[str] = set()
    lines = re.findall(
        r'^ *(?:make|within_time|for target in) ([\w -]+)(?:; do| "\$END_AT")?$', script, re.M
    )
    new = {name for line in lines for name in line.split()}
    while new:
        found |= new
        new = {need for name in new for need in needs.get(name, ())} - found
    return found


@pytest.mark.parametrize("text", MAKE)
def test_ci_makes_it(text: str) -> None:
    targets = {word for word in text.split()[1:] if "=" not in word}
    assert targets <= made_by_ci()


def test_what_is_listed_is_in_a_page() -> None:
    assert (set(LISTED) | set(INSTEAD) | SECOND | set(OTHER_HOST)) - COMMANDS == set()


@pytest.mark.parametrize("text", [each for each in LISTED if re.match("rdma-|python -m b", each)])
def test_what_is_not_run_is_a_command_line(text: str) -> None:
    words = shlex.split(text.removeprefix("python -m "))
    if len(words) > 1 or words[0] != "bench":
        command, rest = command_of(words)
        command.make_context(words[0], rest)


@pytest.mark.parametrize("page", pages.PAGES)
def test_each_block_has_its_language(page: str) -> None:
    found = {language for _, language, _ in pages.FENCE.findall(pages.text_of(page))}
    assert found <= set(pages.LANGUAGES)
    indented = re.findall(
        r"^ {4,}(?:\S+[$] )?(?:rdma-transport|python -m) .*", pages.text_of(page), re.M
    )
    assert indented == [], "commands belong into a block ```sh"


@pytest.mark.parametrize("page", pages.PAGES)
def test_python_in_pages_is_python(page: str) -> None:
    for block in pages.blocks(page, "python"):
        lines = re.findall(r"^(?:>>>|\.\.\.) ?(.*)$", block, re.M)
        ast.parse("\n".join(lines) if lines else block)
