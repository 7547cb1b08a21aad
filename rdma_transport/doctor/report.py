"""Prints results as lines: colored on a terminal, plain in a pipe, never wrapped."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from rdma_transport.doctor.result import FAIL, PASS, PLACES, SKIP, WARN, Result
from rdma_transport.doctor.run import counts

STYLES = {PASS: "green", WARN: "yellow", FAIL: "bold red", SKIP: "dim"}
_NAME = 18
_INDENT = " " * 6


def show(results: Iterable[tuple[str, Result]], console: Console, first: str) -> list[Result]:
    """Print each result as soon as it is known; return all. Fixes for ``first`` come first."""
    shown: list[Result] = []
    family = ""
    for name, result in results:
        if name != family:
            family = name
            _line(console, Text(("\n" if shown else "") + family, "bold"))
        shown.append(result)
        _show(result, console, first)
    _line(console, Text(""))
    _line(console, summary(shown))
    return shown


def _show(result: Result, console: Console, first: str) -> None:
    head, *rest = result.found.splitlines() or [""]
    style = STYLES[result.status]
    _line(console, Text.assemble((result.status, style), f"  {result.name:<{_NAME}}  {head}"))
    for line in rest:
        _line(console, Text(_INDENT + " " * _NAME + f"  {line.strip()}"))
    if result.status not in (WARN, FAIL):
        return
    if result.why:
        _line(console, Text(f"{_INDENT}why: {result.why}"))
    for place in sorted(result.fix, key=lambda place: (place != first, PLACES.index(place))):
        _line(console, Text.assemble(f"{_INDENT}{place}: ", (result.fix[place], "cyan")))


def summary(results: Sequence[Result]) -> Text:
    """Return ``12 passed, 1 with a warning, 2 failed, 3 skipped``."""
    names = {PASS: "passed", WARN: "with a warning", FAIL: "failed", SKIP: "skipped"}
    parts = [
        (f"{count} {names[status]}", STYLES[status])
        for status, count in counts(results).items()
        if count
    ]
    text = Text()
    for number, (words, style) in enumerate(parts):
        text.append(", " if number else "").append(words, style)
    return text


def _line(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True, highlight=False)
