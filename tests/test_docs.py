"""The documentation names the settings and the make targets that there are, and no others."""

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import rdma_transport
from examples import launch
from graph_analyzer import Behavior, capacity, simulate
from graph_analyzer.simulation import SCHEMES
from rdma_transport.command_line import invoke, single
from rdma_transport.units import format_bytes, format_seconds
from tests.support.pages import PAGES
from tools import list_counters

REPOSITORY = Path(__file__).parent.parent
ROW = re.compile(r"^\| `(RDMA_TRANSPORT_\w+)` \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)


def settings_rows() -> list[tuple[str, str, str, str]]:
    """Name, type, default and meaning of each row of the settings table."""
    text = (REPOSITORY / "docs" / "reference.md").read_text()
    section = text.partition("\n## Settings\n")[2].partition("\n## ")[0]
    rows = ROW.findall(section)
    # All of them: a row that ROW does not understand would be one that is not compared.
    assert len(rows) == len(re.findall(r"^\|.*RDMA_TRANSPORT_", section, re.MULTILINE))
    return rows


def test_the_settings_table_is_that_of_the_library() -> None:
    documented = [(name, kind, default) for name, kind, default, _ in settings_rows()]
    declared = [
        (setting.name, setting.type.replace("|", ", "), setting.default or "empty")
        for setting in rdma_transport.settings()
    ]
    assert sorted(documented) == sorted(declared)


def test_every_setting_has_a_meaning() -> None:
    assert [name for name, _, _, meaning in settings_rows() if not meaning.strip()] == []


def test_the_page_of_counters_is_that_of_the_library() -> None:
    page = list_counters.PAGE.read_text()
    assert page == list_counters.listed(page), "run .venv/bin/python tools/list_counters.py"


@pytest.mark.parametrize("document", PAGES)
def test_settings_that_are_mentioned_exist(document: str) -> None:
    mentioned = re.findall(r"\bRDMA_TRANSPORT_\w+", (REPOSITORY / document).read_text())
    assert set(mentioned) <= {setting.name for setting in rdma_transport.settings()}


@pytest.mark.parametrize("document", PAGES)
def test_make_targets_that_are_named_exist(document: str) -> None:
    text = (REPOSITORY / document).read_text()
    code = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))
    named = re.findall(r"(?:^|`)make ([\w-]+)", code, re.MULTILINE)
    targets = re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert set(named) <= set(targets)
    assert named or document != "README.md"


@pytest.mark.parametrize("document", PAGES)
def test_commands_that_are_named_exist(document: str) -> None:
    named = re.findall(r"`?rdma-transport ([a-z]+)", (REPOSITORY / document).read_text())
    app = importlib.import_module("rdma_transport.cli").app
    assert set(named) <= set(typer.main.get_command(app).commands)


def command_lines(document: str) -> list[list[str]]:
    """The words of each `rdma-transport ...` and `python -m bench...` in code."""
    text = (REPOSITORY / document).read_text()
    starts = r"(?:^|`|[$] |image |srun )((?:rdma-transport|python -m bench[\w.]*)(?: [^`|>;#\n]*)?)"
    code = "\n".join(re.findall(r"```.*?```|^    .*|`[^`\n]+`", text, re.DOTALL | re.MULTILINE))
    texts = re.findall(starts, re.sub(r"^ +", "", code, flags=re.MULTILINE), re.MULTILINE)
    return [text.removeprefix("python -m ").split() for text in texts]


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that a command line runs, and the rest of its words."""
    program, *rest = words
    command: Any
    if program in ("rdma-transport", "bench"):
        app = importlib.import_module(f"{program.replace('-', '_')}.cli").app
        command = typer.main.get_command(app)
    else:
        module = importlib.import_module(program)
        if hasattr(module, "__path__"):
            module = importlib.import_module(f"{program}.__main__")
        source = Path(str(module.__file__)).read_text()
        name = re.findall(r"^    run_command\((\w+)\)", source, re.MULTILINE)[0]
        command = typer.main.get_command(single(getattr(module, name)))
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    return command, rest


def test_what_is_launched_exists() -> None:
    pages = ("docs/getting_started.md", "docs/migrating.md")
    text = "\n".join((REPOSITORY / page).read_text() for page in pages)
    named = re.findall(r"(?:^|`)python -m examples.launch ([^`\n]*)", text, re.M)
    lines = [line.split() for line in named]
    command = typer.main.get_command(launch.app)
    for words in lines:
        values = command.make_context("launch", words).params
        jobs = launch.parsed(values["job"])
        assert {name.partition(":")[0] for name in values["until"] or ()} <= {*jobs}
    assert len(lines) > 6


@pytest.mark.parametrize("document", PAGES)
def test_options_that_are_named_exist(document: str) -> None:
    lines = command_lines(document)
    for words in lines:
        command, rest = command_of(words)
        known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        used = {word.partition("=")[0] for word in rest if re.match("--?[a-z]", word)}
        assert used <= known | {"-h", "--help"}, words
    assert len(lines) > 5 or document not in ("README.md", "docs/measuring.md")


def test_the_estimates_that_are_named_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [words for document in PAGES for words in command_lines(document)]
    estimates = [words for words in named if words[1:3] == ["capacity", "--size"]]
    assert len(estimates) > 2
    for words in estimates:
        monkeypatch.setattr(sys, "argv", [*words, "--json"])
        assert invoke(importlib.import_module("rdma_transport.cli").app) == 0
        counts = [words[words.index(name) + 1].split(",") for name in ("--workers", "--servers")]
        found = json.loads(capsys.readouterr().out)["capacity"]
        assert len(found) == len(counts[0]) * len(counts[1])


def test_the_tables_of_clusters_are_those_of_the_command() -> None:
    text = (REPOSITORY / "docs" / "scaling.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| (.*) \|$", text, re.MULTILINE)
    tables = [row for row in rows if int(row[0]) == int(row[1]) + int(row[2])]
    assert [int(tasks) for tasks, *_ in tables] == [8, 64, 512, 4096, 64]
    for _, workers, servers, rest in tables:
        need = capacity(
            512 << 20, int(workers), int(servers), bandwidth=12.5e9, queue_pairs_per_peer=1
        )
        assert rest.split(" | ") == [
            format_bytes(need.server_registered),
            format_bytes(need.worker_registered),
            str(need.server_queue_pairs),
            str(need.worker_queue_pairs),
            str(need.total_queue_pairs),
            format_bytes(need.server_port_bytes),
            format_seconds(need.seconds_overlapped),
            format_seconds(need.seconds_synchronous),
        ]


def test_the_simulated_steps_are_those_of_the_command() -> None:
    text = (REPOSITORY / "docs" / "scaling.md").read_text()
    row = r"^\| (\w+) \| (\d+) \| (\d+|–) \| ([\d.]+ m?s) \| ([\d.]+ m?s) \| ([\d.]+ m?s) \|"
    rows = re.findall(row, text, re.MULTILINE)
    assert len(rows) == 2 * len(SCHEMES)
    for scheme, workers, servers, *percentiles in rows:
        if int(workers) > 56:
            continue  # they take seconds
        need = capacity(512 << 20, int(workers), int(servers.replace("–", "1")), bandwidth=12.5e9)
        times = simulate(need, Behavior(compute=0.2, sigma=0.2, latency=5e-6, scheme=scheme))
        assert percentiles == [format_seconds(each) for each in (times.p50, times.p95, times.p99)]


@pytest.mark.parametrize("document", [*PAGES, "CHANGELOG.md"])
def test_what_is_inside_of_a_list_item_is_indented_by_four_spaces(document: str) -> None:
    # GitHub takes two, but the site's Markdown then ends the list.
    text = re.sub("^```.*?^```", "", (REPOSITORY / document).read_text(), flags=re.M | re.S)
    lists = re.findall(r"^ {1,3}(?:[-*]|\d+\.) .*", text, re.M)
    blocks = re.findall(r"(?<=\n\n) {1,3}\S.*", text)
    assert lists + blocks == []


@pytest.mark.parametrize("document", PAGES)
def test_files_that_are_named_exist(document: str) -> None:
    code = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", (REPOSITORY / document).read_text())
    folders = "native|rdma_transport|graph_analyzer|bench|examples|tests|tools|docs"
    named = [name for name in code if re.fullmatch(rf"({folders})/[\w./]+", name)]
    assert [name for name in named if "NAME" not in name and not (REPOSITORY / name).exists()] == []


def test_the_hooks_run_what_make_lint_runs() -> None:
    recipe = (REPOSITORY / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    hooks = (REPOSITORY / ".pre-commit-config.yaml").read_text()
    lines = [line.strip("\t@").replace("$(PYTHON)", "python") for line in recipe.splitlines()[1:]]
    programs = [line.removesuffix(" $(CXX_FILES)").removesuffix(" .") for line in lines]
    assert "mypy" in programs
    assert re.findall(r"entry: \.venv/bin/(.*?)(?: --force-exclude)?$", hooks, re.M) == programs


def test_the_citation_has_the_version_of_the_package() -> None:
    citation = (REPOSITORY / "CITATION.cff").read_text()
    assert f"\nversion: {rdma_transport.__version__}\n" in citation


def test_the_site_loads_nothing_from_elsewhere() -> None:
    site = REPOSITORY / "build" / "site"
    if not (site / "index.html").exists():
        pytest.skip("make docs builds it")
    pages = {str(path.relative_to(site)): path.read_text() for path in site.rglob("*.html")}
    loads = r'<(?:script|img|link)\b[^>]*\b(?:src|href)="(https?:[^"]*)"'
    assert {name: found for name, text in pages.items() if (found := re.findall(loads, text))} == {}
    # Diagrams, and search in a page that was opened as a file.
    assert '<script src="../scripts/mermaid.min.js">' in pages["architecture/overview.html"]
    assert '<script src="scripts/iframe-worker.js">' in pages["index.html"]
    for file in ("scripts/mermaid.min.js", "scripts/iframe-worker.js", "search/search_index.js"):
        assert (site / file).stat().st_size > 1000
