"""The files by which a rank tells its launcher that it takes part, and why it ends."""

import contextlib
import json
import os
import sys
import time
from pathlib import Path

VARIABLE = "TORCHELASTIC_ERROR_FILE"
"""The environment variable that names the file with the reason, in the format of torchrun."""
PART_VARIABLE = "_RDMA_TRANSPORT_PART_FILE"
"""The variable that names the file which a rank makes that must not end without taking part."""


def note_part() -> None:
    """Tell the launcher that this rank takes part in its job. Never raises."""
    path = os.environ.get(PART_VARIABLE)
    with contextlib.suppress(OSError):
        if path:
            Path(path).touch()


def abort(code: int) -> None:
    """End this process at once with an exit code, and report that."""
    path = os.environ.get(VARIABLE)
    extra = {"py_callstack": "", "timestamp": str(int(time.time()))}
    text = json.dumps({"message": {"message": f"called Abort({code})", "extraInfo": extra}})
    with contextlib.suppress(OSError):
        if path:
            Path(path).write_text(text)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code & 0xFF)


def message_in(path: Path) -> str:
    """Return what a rank reported; empty if it did not."""
    try:
        return str(json.loads(path.read_text())["message"]["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
