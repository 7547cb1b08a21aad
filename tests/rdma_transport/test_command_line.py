"""What all commands share: errors, exit codes, help, and what they load."""

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest
import typer

from bench.support import exit
from rdma_transport.cli import app
from rdma_transport.command_line import BAD_INPUT, EXIT_CODES, FAILED, invoke, single
from tests.support.command import NO_LIBRARIES, clean_environment, run
from tests.support.observing import Terminal

BAD = [
    ["plan", "missing.pb", "--cluster", "ps=1"],
    ["capacity", "--size", "-1"],
    ["doctor", "--peer", "nowhere"],
    ["doctor", "--plan", "missing.json"],
    ["config", "NO_SUCH_SETTING"],
    ["status", "nobody"],
    ["status", "--once", "--output", "out.gif"],
    ["timeline", "--output", "/nowhere/out.json"],
    ["metrics", "--listen", "nowhere"],
    ["bench", "fabric", "--sizes", "64,9x"],
    ["bench", "fabric", "--most", "0"],
    ["bench", "latency", "--hosts", "a,b"],
]


def leaves(command: Any) -> Iterator[Any]:
    for each in getattr(command, "commands", {}).values():
        yield from leaves(each)
    yield command


def test_every_command_lists_the_exit_codes() -> None:
    commands = list(leaves(typer.main.get_command(app)))
    assert len(commands) > 15
    assert {command.epilog for command in commands} == {EXIT_CODES}


@pytest.mark.parametrize("words", BAD, ids=" ".join)
def test_bad_input_is_one_line_and_exit_code_2(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rdma_transport.live.find", found)
    monkeypatch.setattr(sys, "argv", ["rdma-transport", *words])
    assert invoke(app) == BAD_INPUT
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1


def found(which: list[str]) -> list[object]:
    if "nobody" in which:
        raise ValueError("'nobody' is neither a process id nor 'all'")
    return []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EOFError("task a ended"), FAILED),
        (RuntimeError("task a ended"), FAILED),
        (exit.NotAvailableError("task a ended"), exit.NOT_AVAILABLE),
        (TimeoutError("task a ended"), exit.NO_PEER),
    ],
    ids=repr,
)
def test_a_program_reports_why_it_failed(
    error: Exception,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def main() -> None:
        raise error

    monkeypatch.setattr(sys, "argv", ["program"])
    assert exit.guarded(lambda: invoke(single(main))) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.lstrip().startswith("error: ")
    assert said.err.endswith("task a ended\n")


def test_the_list_of_commands_has_whole_sentences() -> None:
    for words in (["--help"], ["bench", "--help"]):
        commands = run(*words).stdout.partition("Commands:\n")[2].partition("\n\n")[0]
        assert all(line.endswith(".") for line in commands.splitlines())
        assert "..." not in commands


@pytest.mark.parametrize(
    "words",
    [
        ["config"],
        ["info", "--no-fabrics"],
        ["capacity", "--size", "512MiB", "--compute", "80ms", "--workers", "8,64"],
    ],
    ids=" ".join,
)
def test_a_terminal_of_80_columns_shows_whole_words(words: list[str]) -> None:
    """It breaks lines between words. What is a table in a pipe has its words in another order."""
    with Terminal(words, columns=80, lines=400) as terminal:
        assert terminal.end() == 0
        shown = _without_servers(terminal.screen())
    expected = _without_servers(run(*words).stdout)
    assert len(expected) > 20
    if words[0] == "capacity":
        assert {word for word in expected if word[0] not in "┏┃┡│└"} <= set(shown)
    else:
        assert shown == expected


def _without_servers(text: str) -> list[str]:
    """Return the words before the list of servers: other tests start and end some."""
    return re.split(r"\bserver:\s+process\b|\bno\s+server\s+with\b", text)[0].split()


def test_a_shell_completes_commands() -> None:
    asked = {"_RDMA_TRANSPORT_COMPLETE": "complete_bash", "COMP_CWORD": "1"}
    asked["COMP_WORDS"] = "rdma-transport ti"
    ran = run(settings=asked)
    assert (ran.returncode, ran.stdout.split(), ran.stderr) == (0, ["timeline"], "")


def test_the_version() -> None:
    ran = run("--version")
    assert (ran.returncode, ran.stdout) == (0, f"rdma_transport {version('rdma_transport')}\n")


HEAVY = {"tensorflow", "keras", "numpy", "grpc", "matplotlib", "textual"}


@pytest.mark.parametrize(
    "arguments",
    [
        *(["config"], ["info"], ["doctor", "--quick"], ["doctor", "-h"], ["qualify", "-h"]),
        *(["bench", "-h"], ["capacity", "--size", "1MiB"], ["plan", "-h"]),
        *(["metrics", "--once"], ["status", "--once"], ["timeline", "-h"]),
    ],
)
def test_no_command_imports_what_takes_long(arguments: list[str]) -> None:
    code = (
        f"import sys; sys.argv = ['x', *{arguments!r}]; from rdma_transport.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"heavy = {HEAVY} & set(sys.modules)\n"
        "assert not heavy, heavy; print('light')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_environment(NO_LIBRARIES),
        capture_output=True,
        text=True,
    )
    assert ran.stdout.endswith("light\n"), ran.stderr


def test_the_package_has_the_schemas_where_they_are_looked_for() -> None:
    files = importlib.import_module("importlib.resources").files("rdma_transport") / "schemas"
    assert sorted(each.name for each in files.iterdir()) == [
        "config.json",
        "doctor.json",
        "info.json",
        "qualify.json",
    ]
