"""The passive side of a measurement across hosts: starts programs for the measuring side.

The first client owns the session, and all programs end with it. Each further connection names a
program and becomes its standard input and output. Only the programs below can be started. Like
TensorFlow's own servers, the agent does not authenticate its clients: use it only in trusted
networks.
"""

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from . import python
from .hosts import FORWARDED
from .machine import facts
from .meeting import listening, read_line, received

SUPPORT = Path(__file__).parent
PROGRAMS = {
    "task": SUPPORT / "task.py",
    "collective_task": SUPPORT / "collective_task.py",
    "tcp_floor_task": SUPPORT / "tcp_floor_task.py",
    "fabric": SUPPORT.parent / "fabric.py",
}
HEAD_SECONDS = 5.0
TAIL = 2000  # characters of a log that are shown
LOOK_SECONDS = 0.2

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)

Say = Callable[[str], None]


class LostError(Exception):
    """The measuring side disconnected without ending the session."""


@dataclass
class Started:
    """A program that runs for another host."""

    name: str
    process: subprocess.Popen[bytes]
    connection: socket.socket
    log: IO[str]

    def end(self) -> None:
        """Kill it and close what it had."""
        self.process.kill()
        self.process.wait()
        self.connection.close()
        self.log.close()

    def tail(self) -> str:
        """Return the end of its log."""
        self.log.seek(0)
        return self.log.read()[-TAIL:].strip()


def wait(host: str, port: int, seconds: float, say: Say) -> None:
    """Serve one measuring side; raise NobodyCameError if none connects within `seconds`."""
    with listening(host, port) as server:
        say(f"waiting on {host}:{port} for the command with --role 0")
        session = _session(server, seconds)
        session.sendall(json.dumps(facts()).encode() + b"\n")
        say(f"serving {session.getpeername()[0]}")
        children: list[Started] = []
        try:
            with session:
                _serve(server, session, children, say)
        finally:
            for child in children:
                child.end()


def _session(server: socket.socket, seconds: float) -> socket.socket:
    """Return the first connection that requests a session; close others."""
    deadline = time.monotonic() + seconds
    while True:
        connection = received(server, max(deadline - time.monotonic(), 0.001))
        if _head(connection).get("program") == "session":
            return connection
        connection.close()


def _head(connection: socket.socket) -> dict[str, Any]:
    """Return the first message of a connection; empty if it is malformed."""
    connection.settimeout(HEAD_SECONDS)
    try:
        asked = json.loads(read_line(connection))
    except (OSError, ValueError):
        return {}
    connection.settimeout(None)
    return asked if isinstance(asked, dict) else {}


def _serve(
    server: socket.socket, session: socket.socket, children: list[Started], say: Say
) -> None:
    while True:
        gone = select.poll()
        for child in children:
            gone.register(child.connection, select.POLLRDHUP)
        ended = {fd for fd, _ in gone.poll(0)}
        for child in list(children):
            code = child.process.poll()
            if code is not None and child.connection.fileno() not in ended:
                say(f"{child.name} ended with code {code}: {child.tail()}")
            if code is not None or child.connection.fileno() in ended:
                child.end()
                children.remove(child)
        readable, _, _ = select.select([server, session], [], [], LOOK_SECONDS)
        if server in readable:
            connection, _ = server.accept()
            child_or_none = _started(connection)
            if child_or_none is not None:
                children.append(child_or_none)
        if session in readable:
            if b"bye" in read_line(session):
                return
            raise LostError("lost the command with --role 0: it failed or was killed")


def _started(connection: socket.socket) -> Started | None:
    """Start the program that a connection requests; None if the request is invalid."""
    asked = _head(connection)
    program = PROGRAMS.get(str(asked.get("program")))
    arguments, given = asked.get("arguments", []), asked.get("environment", {})
    if program is None or not isinstance(arguments, list) or not isinstance(given, dict):
        connection.close()
        return None
    given = {name: str(value) for name, value in given.items() if name in FORWARDED}
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115
    standard = connection.fileno()
    by_number = program.stem == "fabric"
    if by_number:
        command = [*python.module("fabric"), str(standard)]
        standard = subprocess.DEVNULL
    else:
        command = [str(program), *map(str, arguments)]
    process = subprocess.Popen(
        [sys.executable, *python.isolated(command)],
        stdin=standard,
        stdout=standard,
        stderr=log,
        pass_fds=[connection.fileno()] if by_number else [],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""} | given,
        cwd=python.TOP,
        process_group=0,  # Ctrl-C is for the agent, which ends it
        preexec_fn=lambda: _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
    )
    return Started(program.stem, process, connection, log)
