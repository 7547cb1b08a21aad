"""The command `rdma-transport` as a shell runs it: in a pipe, or in a pseudo-terminal."""

import ctypes
import json
import os
import pty
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.deadlines import patient

ROOT = Path(__file__).parent.parent.parent
SECONDS = 60
IPC_LOCK = 14
PR_CAPBSET_DROP = 24
NO_LIBRARIES = {  # as on a host without a card
    "RDMA_TRANSPORT_LIBIBVERBS": "/nowhere/libibverbs.so.1",
    "RDMA_TRANSPORT_LIBFABRIC": "/nowhere/libfabric.so.1",
}


def clean_environment(settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without settings and hints of containers, and then `settings`."""
    hints = (
        *("RDMA_", "FAKE_", "FAULTY_", "FI_", "KUBERNETES_", "SLURM_", "TF_CONFIG"),
        *("FORCE_COLOR", "NO_COLOR"),
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hints)}
    return kept | {"PYTHONPATH": str(ROOT)} | dict(settings or {})


def words(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "rdma_transport.cli", *map(str, arguments)]


def run(
    *arguments: object,
    settings: Mapping[str, str] | None = None,
    limits: Mapping[int, int] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run it in pipes; under `limits` (of RLIMIT_*) also without the right to lock any memory."""

    def under_limits() -> None:
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, IPC_LOCK, 0, 0, 0)
        for kind, limit in (limits or {}).items():
            resource.setrlimit(kind, (limit, limit))

    return subprocess.run(
        words(*arguments),
        env=clean_environment(settings),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patient(SECONDS),
        preexec_fn=under_limits if limits else None,
    )


def run_in_terminal(
    *arguments: object, settings: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run it in a pseudo-terminal; its exit code and all that it wrote."""
    reading, writing = pty.openpty()
    process = subprocess.Popen(
        words(*arguments),
        env=clean_environment({"TERM": "xterm-256color"} | dict(settings or {})),
        stdin=writing,
        stdout=writing,
        stderr=writing,
        close_fds=True,
        start_new_session=True,
    )
    os.close(writing)
    text = b""
    while True:
        try:
            part = os.read(reading, 65536)
        except OSError:  # EIO: the terminal's last user has left
            break
        if not part:
            break
        text += part
    os.close(reading)
    return process.wait(patient(SECONDS)), text.decode().replace("\r\n", "\n")


def valid(text: str, kind: str) -> dict[str, Any]:
    """The JSON, after its schema had its say."""
    import jsonschema

    schema = json.loads((ROOT / "rdma_transport" / "schemas" / f"{kind}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    document: dict[str, Any] = json.loads(text)
    jsonschema.Draft202012Validator(schema).validate(document)
    return document


def checks(ran: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """Of `doctor --json`: the checks by name."""
    document = valid(ran.stdout, "doctor")
    assert document["exit_code"] == ran.returncode, ran.stderr
    found = {check["name"]: check for check in document["checks"]}
    assert len(found) == len(document["checks"])
    for check in found.values():
        if check["status"] in ("WARN", "FAIL"):
            assert check["why"], check
            assert check["fix"], check
    return found
