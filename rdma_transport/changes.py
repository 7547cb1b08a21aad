"""What data-parallel training changes in a program: told where it happens, listed by --explain."""

import os
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

_PACKAGE = str(Path(__file__).parent) + os.sep
_FOREIGN = tuple(
    {os.path.join(path, "") for name, path in sysconfig.get_paths().items() if "lib" in name}
)
_listener: Callable[[str], None] | None = None
_told: set[str] = set()
_lock = threading.Lock()


def listen(listener: Callable[[str], None]) -> None:
    """Give each later change to `listener`, as "train.py:12: what is changed"."""
    global _listener
    _listener = listener


def note(text: str) -> None:
    """Tell a change, and the line of the program that calls now. The same is told once."""
    if _listener is None:
        return
    line = f"{place()}: {text}"
    with _lock:
        known = line in _told
        _told.add(line)
    if not known:
        _listener(line)


def place() -> str:
    """Return file and line of the innermost call that is not of an installed package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not _is_foreign(file):
            return f"{os.path.relpath(file) if _is_below(file) else file}:{frame.f_lineno}"
        frame = frame.f_back
    return "outside the program"


def _is_foreign(file: str) -> bool:
    # AutoGraph's files are called by the line of the program that calls the function.
    return file.startswith(("<frozen", _PACKAGE, *_FOREIGN)) or "__autograph_generated_file" in file


def _is_below(file: str) -> bool:
    return file.startswith(os.path.join(os.getcwd(), ""))
