"""The commands with streams that are closed, full, or of another encoding, and Ctrl-C at once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import forked
from tests.support.command import NO_LIBRARIES, clean_environment, run_in_terminal, words
from tests.support.deadlines import patient

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "rdma_transport"]
ANSWERS = [
    ["--help"],
    ["info", "--json"],
    ["doctor", "--quick"],
    ["bench", "fabric", "--sizes", "64", "--iterations", "10", "--rounds", "1"],
]
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
pytestmark = pytest.mark.timeout(60)


def shell(words: list[str], redirection: str) -> subprocess.CompletedProcess[str]:
    line = f'exec "$@" {redirection}'
    return subprocess.run(
        ["sh", "-c", line, "sh", *COMMAND, *words],
        cwd=ROOT, capture_output=True, text=True, timeout=patient(50), check=False,
    )  # fmt: skip


@pytest.mark.parametrize("words", ANSWERS, ids=" ".join)
def test_no_stream_is_nothing_to_stumble_over(words: list[str]) -> None:
    for redirection in (">&-", "<&- >&- 2>&-"):
        ran = shell(words, redirection)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


@pytest.mark.parametrize("words", ANSWERS, ids=" ".join)
def test_a_full_disk_is_said(words: list[str]) -> None:
    ran = shell(words, ">/dev/full")
    assert ran.returncode == 2
    assert ran.stderr == "error: cannot write the answer: No space left on device\n"


def test_letters_that_the_locale_lacks() -> None:
    code = (
        "from rdma_transport import streams; streams.repair(); print('3–4 … 2× Ω')\n"
        "from rdma_transport.command_line import print_json; print_json({'a': '3–4 😀'})"
    )
    ran = forked.run(["-c", code], os.environ | ASCII, timeout=30, directory=ROOT)
    assert (ran.returncode, ran.stderr) == (0, "")
    line, rest = ran.stdout.split("\n", 1)
    assert line == "3-4 ... 2x ?"
    assert json.loads(rest) == {"a": "3–4 😀"}


def test_ctrl_c_while_it_is_being_loaded() -> None:
    code = (
        "import builtins, runpy, sys\n"
        "real = builtins.__import__\n"
        "def load(name, *more, **named):\n"
        "    if name == 'typer': raise KeyboardInterrupt\n"
        "    return real(name, *more, **named)\n"
        "builtins.__import__ = load\n"
        "sys.argv = ['rdma-transport', '--version']\n"
        "runpy.run_module('rdma_transport', run_name='__main__')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


@pytest.mark.parametrize("command", ["info", "config"])
def test_in_a_terminal_and_without_a_reader(command: str) -> None:
    code, shown = run_in_terminal(command, settings=NO_LIBRARIES)
    assert code == 0
    assert "Traceback" not in shown
    assert "shm" in shown
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        ran = subprocess.run(
            words(command),
            env=clean_environment(NO_LIBRARIES),
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert ran.stderr == ""
