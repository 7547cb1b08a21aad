"""Bytes from one guest to the other, through the folder that they share."""

import time
from pathlib import Path

SECONDS = 60


def wait_for(path: Path) -> bytes:
    """Return what the file holds, once it is there."""
    deadline = time.monotonic() + SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {path} after {SECONDS} s")
        time.sleep(0.05)
    return path.read_bytes()


def publish(path: Path, content: bytes) -> None:
    """Let the file appear whole."""
    partial = path.with_suffix(".part")
    partial.write_bytes(content)
    partial.rename(path)
