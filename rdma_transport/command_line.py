"""What all commands share: exit codes, errors, the option ``--json``, and the output.

Every error is one line on stderr that starts with ``error: ``.
"""

import io
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from rdma_transport import streams
from rdma_transport.errors import BadInputError

FAILED, BAD_INPUT, NOT_AVAILABLE, NO_PEER, INTERRUPTED = 1, 2, 3, 4, 130
EXIT_CODES = (
    "Exit codes: 0 success; 1 a check, a measurement or a request failed; 2 wrong usage or bad "
    "input; 3 the fabric or the plugin is not available, or rdma tensors fell back to gRPC; 4 "
    "another host did not connect or answer in time; 130 Ctrl-C."
)
AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON to stdout.")]
_HELP = {"help_option_names": ["-h", "--help"]}
_ClickException: Any = next(
    each for each in typer.BadParameter.__mro__ if "ClickException" in str(each)
)
"""The base class of usage errors; depending on its version, typer has a click of its own."""


class App(typer.Typer):
    """A command line whose commands list the exit codes in their help."""

    def command(self, name: str | None = None, **options: Any) -> Any:
        """See ``typer.Typer.command``."""
        return super().command(name, **({"epilog": EXIT_CODES} | options))


def make_app(
    help: str, cls: type[TyperGroup] = TyperGroup, add_completion: bool = False
) -> typer.Typer:
    """Return an empty command line with the options that all command lines here share."""
    return App(
        cls=cls,
        help=help,
        epilog=EXIT_CODES,
        add_completion=add_completion,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=_HELP,
    )


def single(command: Callable[..., Any]) -> typer.Typer:
    """Return the command line of a program with one command."""
    app = make_app("")
    app.command(context_settings=_HELP)(command)
    return app


def fail(why: str, code: int) -> NoReturn:
    """End the command with an error and an exit code."""
    raise typer.Exit(_failed(why, code))


def split_place(text: str) -> tuple[str, int] | None:
    """Return host, perhaps empty, and port of ``[HOST:]PORT`` or ``[IPv6]:PORT``, or None."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit()) or int(port) > 65535:
        return None
    return host.strip("[]"), int(port)


def parse_place(text: str, option: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT`` or ``[IPv6]:PORT``; raise ``BadInputError``."""
    place = split_place(text)
    if place is None or not all(place):
        raise BadInputError(f"{option} {text}: give HOST:PORT, such as 10.0.0.2:2222")
    return place


def fabric_or(*others: str) -> Callable[[str], str]:
    """Return the callback of an option that takes a fabric's name, one of `others`, or nothing."""

    def check(name: str) -> str:
        from rdma_transport.fabric import FABRICS

        known = (*others, *FABRICS)
        if name and name not in known:
            raise typer.BadParameter(f"'{name}' is not one of {', '.join(known)}")
        return name

    return check


def check_writable(path: Path) -> None:
    """Raise ``BadInputError`` if the file cannot be written, before the work for its content."""
    if path.is_dir():
        raise BadInputError(f"{path} is a directory; give the name of a file in it")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise BadInputError(f"cannot write {path}: there is no directory {path.parent}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise BadInputError(f"cannot write {path}: permission denied")


def check_output(path: Path, *suffixes: str) -> None:
    """Raise ``BadInputError`` if the file has another suffix or cannot be written."""
    if path.suffix.lower() not in suffixes:
        raise BadInputError(f"{path}: give a file name that ends in {' or '.join(suffixes)}")
    check_writable(path)


def output(help: str) -> Any:
    """Return the option ``--output`` of a command that writes a file."""
    return typer.Option("--output", "-o", metavar="FILE", help=help)


def print_json(value: dict[str, Any]) -> None:
    """Write only JSON to stdout."""
    sys.stdout.write(json_text(value) + "\n")
    sys.stdout.flush()


def json_text(value: dict[str, Any]) -> str:
    """Return JSON in the character set of stdout."""
    utf = sys.stdout.encoding.lower().startswith("utf")
    return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=not utf)


def invoke(application: typer.Typer, name: str | None = None) -> int:
    """Run a command line; return its exit code."""
    try:
        code = application(prog_name=name, standalone_mode=False)
    except typer.Abort as abort:
        return _failed(abort.__cause__ or "aborted", FAILED)
    except BadInputError as error:
        return _failed(error, BAD_INPUT)
    except _ClickException as error:
        text = io.StringIO()
        error.show(text)
        sys.stderr.write(re.sub("^Error: ", "error: ", text.getvalue(), flags=re.MULTILINE))
        return int(error.exit_code)
    return code if isinstance(code, int) else 0


def run(application: typer.Typer, name: str) -> NoReturn:
    """Run a command line under its name, and end the process with its exit code."""
    # hide TensorFlow's log lines about the processor
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    streams.repair()
    try:
        sys.exit(invoke(application, name))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # discards what is buffered
        sys.exit(_failed(f"cannot write the answer: {error.strerror or error}", BAD_INPUT))


def _failed(why: object, code: int) -> int:
    typer.echo(f"error: {why}", err=True)
    return code
