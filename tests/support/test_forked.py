"""A forked process is what a new one would be, where tests could tell the difference."""

import json
import os
import signal
import subprocess

import pytest

from bench.support.cluster import free_port
from tests.support import forked

pytestmark = pytest.mark.timeout(60)

IDENTITY = """
import ctypes, json, os, random, sys, numpy
import tensorflow as tf
server = tf.distribute.Server({"a": [sys.argv[1]]}, job_name="a", task_index=0, protocol="grpc")
session = tf.compat.v1.Session(server.target)
print(json.dumps({
    "own": [
        os.getpid(),
        session.list_devices()[0].incarnation,
        random.random(),
        numpy.random.random(),
        ctypes.addressof(ctypes.create_string_buffer(2**24)),
    ],
    "given": [os.environ.get("ONLY_HERE"), os.getcwd(), os.getpgid(0) == os.getpid(), __name__],
}), flush=True)
os._exit(0)
"""


def test_two_have_nothing_in_common_but_what_both_were_given() -> None:
    answers = []
    for value in "xy":
        ran = forked.run(
            ["-c", IDENTITY, f"127.0.0.1:{free_port()}"],
            os.environ | {"ONLY_HERE": value},
            directory="/",
            timeout=30,
        )
        answers.append(json.loads(ran.stdout))
        assert answers[-1]["given"] == [value, "/", True, "__main__"]
    for one, other in zip(answers[0]["own"], answers[1]["own"], strict=True):
        assert one != other


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("", 0),
        ("raise SystemExit(7)", 7),
        ("raise SystemExit('why')", 1),
        ("1 / 0", 1),
        ("import os; os.abort()", -signal.SIGABRT),
    ],
)
def test_how_it_ends(code: str, expected: int) -> None:
    assert forked.run(["-c", code], timeout=30).returncode == expected


def test_it_is_talked_to_and_killed() -> None:
    process = forked.Process(
        ["-c", "print(input(), flush=True); input()"],
        os.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        process.stdin.write("hello\n")
        process.stdin.flush()
        assert process.stdout.readline() == "hello\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0)
        assert process.poll() is None
        process.kill()
        assert process.wait(10) == process.poll() == -signal.SIGKILL
        assert process.stdout.read() == "", "nobody else has its end of the pipe"


def test_what_cannot_be_imported_is_told() -> None:
    with pytest.raises(RuntimeError, match="No module named 'nowhere'"):
        forked.Process(["-c", ""], os.environ, modules=("nowhere",))
