"""A libibverbs without a card, for tasks that are processes: how to use it, and to disturb it."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

NATIVE_TESTS = Path(__file__).parent.parent.parent / "build" / "debug" / "tests" / "native"
SECONDS = 10


def fake_library() -> Path:
    """The library; skips the test if it is not built."""
    found = sorted(NATIVE_TESTS.rglob("libfake_ibverbs.so"))
    if not found:
        pytest.skip("the fake libibverbs is not built: make test-native")
    return found[0]


def environment(fabric: str = "verbs", fake: str = "", **settings: str) -> dict[str, str]:
    """A task's environment with the fake; `fake` as in tests/native/fake_ibverbs/control.h."""
    made = {
        "RDMA_TRANSPORT_FABRIC": fabric,
        "RDMA_TRANSPORT_LIBIBVERBS": str(fake_library()),
        "FAKE_IBVERBS": fake,
    }
    return made | {f"RDMA_TRANSPORT_{name}": value for name, value in settings.items()}


def tell(pid: int, command: str) -> Any:
    """Give the fake of a process a command; return what it answers, parsed if it is JSON."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as talk:
        talk.settimeout(SECONDS)
        talk.bind(f"\0tests.fake_verbs.{os.getpid()}.{id(talk)}")
        talk.sendto(command.encode(), f"\0fake_ibverbs.{pid}")
        answer = talk.recv(65536).decode()
    if answer.startswith("error"):
        raise ValueError(f"{command}: {answer}")
    return json.loads(answer) if answer.startswith("{") else answer
