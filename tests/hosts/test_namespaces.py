"""The two hosts of these tests: no network in common with this one, and nothing left of them."""

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.support import forked
from tests.support.deadlines import eventually
from tests.support.namespaces import Hosts

pytestmark = pytest.mark.timeout(60)
KILLED = """
import os, subprocess, sys, time
sys.path.insert(0, os.getcwd())
from tests.support import forked
from tests.support.namespaces import made
hosts = made()
task = forked.Process(
    ["-c", "input()"], os.environ, stdin=subprocess.PIPE, network=hosts.second.network, modules=())
for host in hosts.both:
    print(host.call(lambda: os.readlink("/proc/thread-self/ns/net")), flush=True)
print("ready", flush=True)
time.sleep(60)
"""


def users(network: str) -> list[int]:
    """The processes in a network namespace."""
    found = []
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            if os.readlink(path) == network:
                found.append(int(path.parts[2]))
        except OSError:  # it has ended
            continue
    return found


def test_nothing_is_left_of_those_of_a_killed_process(hosts: Hosts) -> None:
    before = set(socket.if_nameindex())
    process = forked.Process(["-c", KILLED], os.environ, stdout=subprocess.PIPE)
    assert process.stdout is not None
    networks = [process.stdout.readline().strip() for _ in hosts.both]
    assert process.stdout.readline() == "ready\n"
    assert eventually(lambda: users(networks[1]), 20)
    os.kill(process.pid, signal.SIGKILL)
    process.stdout.close()
    assert eventually(lambda: not any(users(network) for network in networks), 20)
    assert set(socket.if_nameindex()) == before
