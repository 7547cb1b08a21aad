"""``python -m mpi4py [script | -m module | -c code | -] ...``: a failure ends all ranks."""

import ast
import runpy
import sys
import traceback
from pathlib import Path
from types import ModuleType

from mpi4py import rc

_USAGE = "usage: python -m mpi4py [-rc KEY=VALUE,...] [SCRIPT | -m MODULE | -c CODE | -] [ARG]..."


def main() -> None:
    """Run a program. If it fails, end all ranks with its code, as ``Abort()`` does."""
    words = sys.argv[1:]
    while words[:1] in (["-rc"], ["--rc"]):
        for option in words[1].split(","):
            name, _, value = option.partition("=")
            rc(**{name: _value(value)})
        del words[:2]
    if not words or (words[0].startswith("-") and words[0] not in ("-", "-c", "-m")):
        sys.exit(f"{_USAGE}: {' '.join(words) or 'no program'}")
    try:
        _run(words)
    except SystemExit as error:
        if error.code is None or error.code == 0:
            raise
        if not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
        _abort(error.code if isinstance(error.code, int) else 1)
        raise
    except BaseException as error:
        traceback.print_exc()
        _abort(130 if isinstance(error, KeyboardInterrupt) else 1)
        sys.exit(1)


def _run(words: list[str]) -> None:
    kind, sys.argv[:] = words[0], words
    if kind == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    elif kind in ("-c", "-"):
        code = sys.argv.pop(1) if kind == "-c" else sys.stdin.read()
        program = ModuleType("__main__")
        sys.modules["__main__"] = program
        exec(compile(code, "<string>", "exec"), vars(program))
    else:
        sys.path[0] = str(Path(kind).resolve().parent)
        runpy.run_path(kind, run_name="__main__")


def _value(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except ValueError:
        return text


def _abort(code: int) -> None:
    library = sys.modules.get("mpi4py.MPI")
    if library is not None:
        library.COMM_WORLD.Abort(code)
