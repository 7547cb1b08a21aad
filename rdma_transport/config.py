"""The command ``rdma-transport config``: all settings, and errors in the environment."""

import dataclasses
import difflib
import sys
from typing import Annotated

import typer

from rdma_transport.command_line import BAD_INPUT, AsJson, print_json
from rdma_transport.errors import BadInputError
from rdma_transport.settings import Environment, Setting, read

VERSION = 1
PREFIX = "RDMA_TRANSPORT_"


def config(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Show only this setting. The prefix RDMA_TRANSPORT_ is optional."
        ),
    ] = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Show only settings that the environment sets.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show each setting with its type, default, source and value.

    Exits with code 2 if the environment has an invalid value or an unknown name.
    """
    environment = read()
    rows = list(environment.settings)
    if name is not None:
        rows = [_named(rows, name)]
    if changed:
        rows = [row for row in rows if row.source != "default"]
    if as_json:
        print_json(
            {
                "version": VERSION,
                "settings": [dataclasses.asdict(row) for row in rows],
                "error": environment.error,
                "warnings": list(environment.warnings),
            }
        )
    else:
        _show(rows)
    if _complain(environment):
        raise typer.Exit(BAD_INPUT)


def _named(rows: list[Setting], name: str) -> Setting:
    wanted = name.upper()
    full = wanted if wanted.startswith(PREFIX) else PREFIX + wanted
    for row in rows:
        if row.name == full:
            return row
    near = difflib.get_close_matches(full, [row.name for row in rows], n=1, cutoff=0)
    raise BadInputError(f"there is no setting {name}; did you mean {near[0]}?")


def _show(rows: list[Setting]) -> None:
    from rich.text import Text

    from rdma_transport.tables import indented, make_console

    console = make_console()
    for row in rows:
        given = row.source != "default"
        about = f"{row.source}; {row.type}" + (
            f"; default {row.default or 'empty'}" if given else ""
        )
        head = (f"{row.name} = {row.value}".rstrip(), "bold yellow" if given else "bold")
        console.print(Text.assemble(head, f"  ({about})"))
        console.print(indented(row.meaning, 4))


def _complain(environment: Environment) -> bool:
    """Print each problem to stderr; return whether there is any."""
    problems = [environment.error] if environment.error else []
    for problem in (*problems, *environment.warnings):
        print(f"error: {problem}", file=sys.stderr)
    return bool(problems or environment.warnings)
