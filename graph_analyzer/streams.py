"""Standard streams as a command needs them, whatever it was started with."""

import codecs
import os
import sys

_PLAIN = {"–": "-", "…": "...", "×": "x", "→": "->", "µ": "u", "’": "'"}


def repair() -> None:
    """Open what is closed on nothing, and write what the locale has no letter for in others.

    A file opened later would otherwise take the place of a closed stream, and be written to.
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
        reconfigure = getattr(stream, "reconfigure", None)  # none if somebody catches what is said
        if reconfigure is not None:
            reconfigure(errors="plain")


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Of letters that are not in an encoding; those that tables are made of stay readable."""
    assert isinstance(error, UnicodeEncodeError)
    letters = error.object[error.start : error.end]
    return "".join(_PLAIN.get(letter, "?") for letter in letters), error.end
