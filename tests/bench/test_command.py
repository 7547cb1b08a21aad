"""`rdma-transport bench` as a shell sees it: exit codes, stdout, stderr, Ctrl-C, two hosts."""

import json
import os
import pty
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest

from bench import cli, options
from bench.report import schema
from bench.support import ucx
from bench.support.cluster import free_port
from tests.support import forked
from tests.support.deadlines import eventually, patient

ROOT = Path(__file__).parents[2]
BENCH = [sys.executable, "-m", "rdma_transport.cli", "bench"]
QUICK = ["fabric", "--sizes", "64,4KiB", "--iterations", "20", "--rounds", "1"]
ENDLESS = ["fabric", "--sizes", "64", "--iterations", "100000000"]
SOON = 30.0
NO_VERBS = os.environ | {"RDMA_TRANSPORT_LIBIBVERBS": "libnowhere.so.1"}

pytestmark = pytest.mark.timeout(60)


def run(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": ROOT} | more
    return subprocess.run([*BENCH, *words], text=True, timeout=patient(50), **options)


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[str]]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([*BENCH, *words], cwd=ROOT, text=True, **pipes)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def valid(text: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(text)
    jsonschema.Draft202012Validator(schema()).validate(document)
    return document


def two_hosts() -> tuple[str, str]:
    first, second = free_port(), free_port()
    return "--hosts", f"127.0.0.1:{first},127.0.0.1:{second}"


def measures(pid: int) -> bool:
    """Whether it took more processor time than its start does."""
    return sum(psutil.Process(pid).cpu_times()[:2]) > 1.0


class Terminal:
    """The command in a terminal of its own."""

    def __init__(self, *words: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            os.execv(BENCH[0], [*BENCH, *words])

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.pid).children(recursive=True)

    def press_ctrl_c(self) -> None:
        os.write(self.fd, b"\x03")

    def end(self) -> tuple[int, str]:
        """The exit code, and all that it wrote."""
        text = b""
        while True:
            try:
                more = os.read(self.fd, 65536)
            except OSError:  # Linux says so that nobody has the other side any more
                break
            if not more:
                break
            text += more
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status), text.decode(
            errors="replace"
        )  # Ctrl-C may cut a letter


def test_json_is_all_of_stdout_and_obeys_the_schema() -> None:
    ran = run(*QUICK, "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    document = valid(ran.stdout)
    (result,) = document["results"]
    assert result["benchmark"] == "fabric"
    rows = {(row["test"], row["bytes"]): row for row in result["rows"]}
    for size in (64, 4096):
        assert rows["write_bw", size]["gbps"] > 0
        assert rows["read_bw", size]["gbps"] > 0
        times = rows["write_lat", size]["us"]
        assert 0 < times["min"] <= times["p50"] <= times["max"]
        assert times["p99"] is times["p99.9"] is None, "20 samples do not tell"
    assert rows["notify_rate", 64]["per_second"] > 0
    assert {row["wrong"] for row in result["rows"] if row["protocol"] != "cpu"} == {0}
    assert result["routes"][0]["transport"] == rows["write_bw", 64]["protocol"]


def test_a_table_in_a_pipe() -> None:
    ran = run(*QUICK)
    assert (ran.returncode, ran.stderr) == (0, "")
    first, second, *_ = ran.stdout.splitlines()
    assert first == "# rdma-transport bench " + " ".join(QUICK)
    assert "TensorFlow" in second
    assert "\x1b" not in ran.stdout
    for word in ("write_bw", "#bytes", "p50", "GB/s", "# transport shm (same host)"):
        assert word in ran.stdout


def test_a_table_and_a_bar_in_a_terminal() -> None:
    code, text = Terminal(*QUICK).end()
    assert code == 0
    assert "left  measuring 2/2" in text
    assert "write_bw" in text


def test_ucx_takes_turns_with_the_fabric() -> None:
    if why := ucx.missing():
        pytest.skip(why)
    ran = run(*QUICK, "--fabric", "shm", "--compare", "ucx", "--json")
    assert ran.returncode == 0, ran.stderr
    (result,) = valid(ran.stdout)["results"]
    for test in ("write_bw", "read_bw", "write_lat", "read_lat"):
        rows = {row["protocol"]: row for row in result["rows"] if row["test"] == test}
        assert set(rows) == {"shm", "ucx"}
        assert rows["shm"]["ratio"] > 0
        assert rows["ucx"]["ratio"] is None
    assert any(note.startswith("UCX 1.") for note in result["notes"])


NOWHERE = {"PATH": "/nowhere"}


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "why"),
    [
        (["--compare", "ucx"], NOWHERE, 3, "no ucx_perftest. Install it"),
        (["--compare", "ucx"], {}, 3, "UCX is measured through shared memory, and this is"),
        (["--compare", "nccl"], {}, 2, "'nccl' is not one of"),
    ],
)
def test_what_cannot_be_compared(
    arguments: list[str], environment: dict[str, str], code: int, why: str
) -> None:
    fabric = "shm" if environment else "libfabric"
    ran = run(*QUICK, "--fabric", fabric, *arguments, env=os.environ | environment)
    assert (ran.returncode, why in ran.stderr) == (code, True), ran.stderr


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "out.png"
    ran = run(*QUICK, "--output", str(picture), "--json")
    assert ran.returncode == 0, ran.stderr
    valid(ran.stdout)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["latncy"], "No such command 'latncy'. Did you mean 'latency'?"),
        (["fabric", "--sizes", "64,9x"], "'9x': unknown unit 'x'; use B, KiB"),
        (["fabric", "--sizes", "4KiB..64"], "not a range"),
        (["fabric", "--fabric", "infiniband"], "--fabric"),
        (["fabric", "--output", "out.gif"], "ends in .png or .svg"),
        (["fabric", "--output", "/nowhere/out.png"], "no directory /nowhere"),
        (["edges", "--role", "1"], "--role: needs --hosts"),
        (["edges", "--hosts", "a:1"], "'a:1' is not HOST:PORT,HOST:PORT"),
        (["edges", "--hosts", "a:1,b"], "--hosts b: give HOST:PORT"),
        (["edges", "--hosts", "a:1,b:2", "--role", "2"], "2 is too large for 2 hosts"),
        (["latency", "--payloads", "small,huge"], "'huge' is not one of small"),
        (["latency", "--compare", "mpi"], "--compare"),
        (["train", "--models", "gru,bert"], "unknown model bert; use alexnet"),
        (["all-reduce", "--workers", "1"], "--workers"),
        (["collectives", "--ranks", "1"], "--ranks"),
        (["embeddings", "--dims", "16,x"], "16,x are not positive numbers"),
        (["embeddings", "--dims", "64", "--size", "128"], "no row fits into 128"),
        (["collectives", "--ops", "scan"], "unknown collective scan; use all_reduce"),
    ],
)
def test_a_wrong_option_is_exit_code_2_and_a_sentence(
    words: list[str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "")
    assert sentence in said.err


def test_a_picture_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    full = tmp_path / "full.png"
    full.symlink_to("/dev/full")
    ran = run(*QUICK, "--output", str(full))
    assert (ran.returncode, ran.stderr) == (
        2,
        f"error: cannot write {full}: No space left on device\n",
    )


def test_without_matplotlib_there_is_advice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "fabric", "--output", "out.png"])
    monkeypatch.setattr(options, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "pip install matplotlib" in capsys.readouterr().err


def test_a_fabric_that_is_not_there_is_exit_code_3() -> None:
    ran = run("fabric", "--fabric", "verbs", "--json", env=NO_VERBS)
    assert (ran.returncode, ran.stdout) == (3, "")
    assert "libnowhere.so.1" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("role", ["0", "1"])
def test_a_host_that_never_comes_is_exit_code_4(role: str) -> None:
    ran = run(*QUICK, *two_hosts(), "--role", role, "--connect-timeout", "0.3", "--json")
    assert (ran.returncode, ran.stdout) == (4, "")
    assert "error: no process " in ran.stderr


def test_ctrl_c_ends_all_processes() -> None:
    terminal = Terminal(*ENDLESS)
    assert eventually(lambda: len(terminal.children()) == 1, SOON)
    children = terminal.children()
    assert eventually(lambda: measures(terminal.pid), SOON)
    terminal.press_ctrl_c()
    code, text = terminal.end()
    assert code == 130
    assert "Traceback" not in text
    assert eventually(lambda: not any(child.is_running() for child in children))


def test_ctrl_c_while_tensorflow_starts_its_tasks() -> None:
    terminal = Terminal("latency", "--payloads", "small")
    assert eventually(lambda: len(terminal.children()) == 2, 40)
    children = terminal.children()
    terminal.press_ctrl_c()
    code, text = terminal.end()
    assert code == 130
    assert "Traceback" not in text
    assert eventually(lambda: not any(child.is_running() for child in children))


def test_ctrl_c_on_the_waiting_side() -> None:
    with started(*QUICK, *two_hosts(), "--role", "1") as waiting:
        assert waiting.stderr is not None
        assert "waiting on" in waiting.stderr.readline()
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(patient(SOON)) == 130


def test_two_commands_measure_one_fabric() -> None:
    hosts = two_hosts()
    with started(*QUICK, *hosts, "--role", "1") as waiting:
        ran = run(*QUICK, *hosts, "--json")
        assert ran.returncode == 0, ran.stderr
        document = valid(ran.stdout)
        assert len(document["machines"]) == 2
        assert len(document["results"][0]["devices"]) == 2
        out, _ = waiting.communicate(timeout=patient(SOON))
        assert (waiting.returncode, out) == (0, "")


@pytest.mark.parametrize("dies", ["measuring", "waiting"])
def test_when_one_of_two_commands_dies_the_other_ends(dies: str) -> None:
    hosts = two_hosts()
    with (
        started(*ENDLESS, *hosts, "--role", "1") as waiting,
        started(*ENDLESS, *hosts) as measuring,
    ):
        assert eventually(lambda: len(psutil.Process(waiting.pid).children()) == 1, SOON)
        child = psutil.Process(waiting.pid).children()[0]
        assert eventually(lambda: measures(measuring.pid), SOON)
        victim, other = (measuring, waiting) if dies == "measuring" else (waiting, measuring)
        victim.kill()
        _, errors = other.communicate(timeout=patient(30))
        assert other.returncode == 1
        assert "error: " in errors
        assert "Traceback" not in errors
        assert eventually(lambda: not child.is_running())


def test_two_commands_measure_tensorflow() -> None:
    hosts = two_hosts()
    words = ["latency", "--payloads", "small", "--seconds", "0.2", "--warm-up", "0.1", *hosts]
    with started(*words, "--role", "1") as waiting:
        # in a process that has TensorFlow already
        main = "from rdma_transport.cli import main; main()"
        ran = forked.run(["-c", main, "bench", *words, "--json"], directory=ROOT, timeout=50)
        assert ran.returncode == 0, ran.stderr
        (result,) = valid(ran.stdout)["results"]
        (row,) = result["rows"]
        assert (row["protocol"], row["wrong"]) == ("rdma", 0)
        assert row["us"]["p50"] > 0
        assert {route["transport"] for route in result["routes"]} == {"shm"}
        assert waiting.wait(patient(SOON)) == 0


def test_without_tensorflow_the_fabric_is_measured_and_the_rest_says_so(tmp_path: Path) -> None:
    hidden = (
        "import importlib.metadata, importlib.util, sys\n"
        "sys.modules['tensorflow'] = None\n"
        "find, version = importlib.util.find_spec, importlib.metadata.version\n"
        "def no_spec(name, *more):\n"
        "    return None if name == 'tensorflow' else find(name, *more)\n"
        "def no_version(name):\n"
        "    if name.startswith('tensorflow'):\n"
        "        raise importlib.metadata.PackageNotFoundError(name)\n"
        "    return version(name)\n"
        "importlib.util.find_spec, importlib.metadata.version = no_spec, no_version\n"
    )
    (tmp_path / "sitecustomize.py").write_text(hidden)
    without = os.environ | {"PYTHONPATH": str(tmp_path)}
    ran = run(*QUICK, "--json", env=without)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert valid(ran.stdout)["machines"][0]["tensorflow"] == "not installed"
    for words in (["latency", "--seconds", "0.1"], ["all-reduce"], []):
        ran = run(*words, env=without)
        assert (ran.returncode, ran.stdout) == (3, "")
        assert ran.stderr.startswith(f"error: not available: {sys.executable} has no TensorFlow")
        assert 'pip install "tensorflow==2.21.*"' in ran.stderr


def test_a_folder_named_bench_in_the_working_directory_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "__init__.py").write_text("raise ImportError('this is another bench')")
    ran = run(*QUICK, "--json", cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    valid(ran.stdout)


def test_the_command_imports_nothing_by_the_name_bench() -> None:
    code = "import sys, rdma_transport.cli; assert 'bench' not in sys.modules"
    ran = forked.run(["-c", code], os.environ, timeout=30, directory=ROOT)
    assert (ran.returncode, ran.stderr) == (0, "")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    installed = project["tool"]["scikit-build"]["wheel"]["packages"]
    assert {Path(folder).parts[0] for folder in installed} == {"rdma_transport", "graph_analyzer"}


def test_help_and_the_fabric_do_not_load_tensorflow() -> None:
    code = (
        "import sys, os; sys.argv[0] = 'x'; end = os._exit\n"
        "def see(code):\n"
        "    heavy = {'tensorflow', 'matplotlib', 'keras'} & set(sys.modules)\n"
        "    print('heavy', heavy, flush=True); end(code)\n"
        "os._exit = see\n"
        "from rdma_transport.cli import main\n"
        "try: main()\n"
        "except SystemExit: see(0)"
    )
    for words in (["--help"], ["bench", "--help"], ["bench", *QUICK]):
        command = [sys.executable, "-c", code, *words]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=patient(30), cwd=ROOT)
        assert ran.stdout.endswith("heavy set()\n"), ran.stdout + ran.stderr
