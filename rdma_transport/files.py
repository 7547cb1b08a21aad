"""Reads files that users name."""

import os
import stat
from pathlib import Path

from rdma_transport.errors import BadInputError

MAX_TEXT_BYTES = 2**28
"""Text is parsed in Python, which takes minutes per GiB. Use a binary file for larger graphs."""


def read_text(path: Path) -> bytes:
    """Return the bytes of a text file that is not too large; raise ``BadInputError``."""
    try:
        return read_file(path, MAX_TEXT_BYTES)
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror or error}") from error


def read_file(path: Path, most: int) -> bytes:
    """Return the bytes of a file of less than `most`; raise ``BadInputError`` or ``OSError``."""
    with path.open("rb", buffering=0) as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode):
            raise BadInputError(f"{path}: not a regular file")
        if info.st_size >= most:
            raise BadInputError(
                f"{path}: the file has {info.st_size} bytes; the maximum is {most - 1}. "
                "Keep weights in a checkpoint, and large graphs in a binary .pb"
            )
        return file.read(most)
