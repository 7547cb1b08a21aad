"""The launcher of the examples, with a script that needs no TensorFlow."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.deadlines import eventually

pytestmark = pytest.mark.timeout(60)
SCRIPT = """
import json, os, sys, time
config = json.loads(os.environ["TF_CONFIG"])
task = "{type}:{index}".format(**config["task"])
print(task, os.getpid(), config["rpc_layer"], sorted(config["cluster"]), *sys.argv[1:], flush=True)
if task in sys.argv:
    sys.exit(f"{task} has had enough")
if task.startswith("ps") or "wait" in sys.argv or ("serve" in sys.argv and task != "chief:0"):
    time.sleep(100)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def launched(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "examples.launch", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def test_it_shows_the_first_worker_and_ends_the_parameter_servers(script: str) -> None:
    launcher = launched("--protocol", "grpc", script, "--steps", "3")
    out, err = launcher.communicate()
    assert (launcher.returncode, err) == (0, "")
    (line,) = out.splitlines()
    assert line.startswith("worker:0 ")
    assert line.endswith(" grpc ['ps', 'worker'] --steps 3")


def test_workers_that_serve_a_chief_are_ended_with_it(script: str) -> None:
    jobs = [f"--job={job}" for job in ("chief=1", "worker=2", "ps=1")]
    launcher = launched(*jobs, script, "serve")
    out, err = launcher.communicate()
    assert (launcher.returncode, err) == (0, "")
    assert out.startswith("chief:0 ")


def test_who_still_runs_is_named_when_the_first_task_has_ended(script: str) -> None:
    launcher = launched("--job", "chief=1", "--job", "worker=2", script, "serve")
    assert launcher.stderr is not None
    try:
        assert launcher.stderr.readline() == (
            "note: chief:0 has ended, and worker:0, worker:1 still run. "
            "If they only serve it: --until chief:0\n"
        )
    finally:
        launcher.send_signal(signal.SIGINT)
        launcher.communicate()


def test_verbose_shows_the_others_by_name(script: str) -> None:
    out, _ = launched("--job", "chief=1", "--job", "worker=2", "--verbose", script).communicate()
    starts = sorted(line.split()[:2] for line in out.splitlines())
    assert [start[0] for start in starts] == ["[worker:0]", "[worker:1]", "chief:0"]


def test_the_end_of_one_task_may_be_the_end(script: str) -> None:
    launcher = launched("--job", "ps=2", "--until", "ps:1", script, "ps:1")
    _, err = launcher.communicate()
    assert launcher.returncode == 1
    assert "ps:1 exited with code 1" in err
    assert "[ps:1] ps:1 has had enough" in err


def test_a_failure_shows_what_the_task_wrote(script: str) -> None:
    launcher = launched(script, "worker:1")
    out, err = launcher.communicate()
    assert launcher.returncode == 1
    assert "worker:1" not in out.split()[0]
    assert "worker:1 exited with code 1\n" in err
    assert "[worker:1] worker:1 has had enough" in err


def gone(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_the_tasks_end_with_the_launcher(script: str, number: signal.Signals, code: int) -> None:
    launcher = launched(script, "wait")
    assert launcher.stdout is not None
    assert launcher.stdout.readline().startswith("worker:0 ")
    tasks = psutil.Process(launcher.pid).children()
    assert len(tasks) == 3
    os.kill(launcher.pid, number)
    launcher.communicate()
    assert launcher.returncode == code
    assert eventually(lambda: all(gone(task) for task in tasks))
