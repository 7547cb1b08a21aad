"""Makes the standard streams safe for a command, however it was started."""

import codecs
import os
import sys

_PLAIN = {"–": "-", "…": "...", "×": "x", "→": "->", "µ": "u", "’": "'"}


def repair() -> None:
    """Open closed streams on /dev/null, and replace characters that the locale does not have.

    Otherwise a file that is opened later would take the descriptor of a closed stream.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    codecs.register_error("plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # missing if the output is captured
        if reconfigure is not None:
            reconfigure(errors="plain")


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding does not have; those in tables stay readable."""
    assert isinstance(error, UnicodeEncodeError)
    letters = error.object[error.start : error.end]
    return "".join(_PLAIN.get(letter, "?") for letter in letters), error.end
