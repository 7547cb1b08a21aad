"""Hosts of a pretended cluster: each a set of namespaces with a network, a name and processes.

Nothing of a node has a name on this machine. If the tests are killed, the kernel ends the nodes
with all of their processes, and their interfaces and mounts vanish.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.support.deadlines import eventually

SETUP_SECONDS = 30
# Process 1 of a node. It adopts orphans, and continues when the node has its interface.
INIT = """
set -e
mount --bind "$2" /etc/hosts
hostname "$1"
ip link set lo up
echo ready
read -r _
while :; do wait; sleep 3600 & done
"""


class UnavailableError(Exception):
    """This machine cannot have such nodes; the message says why, and what to do."""


def call(*command: object) -> str:
    """Run a command to its end; return its standard output."""
    words = [str(word) for word in command]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=SETUP_SECONDS, check=False)
    if ran.returncode != 0:
        raise UnavailableError(f"{' '.join(words)}: {ran.stderr.strip()}")
    return ran.stdout


class Node:
    """One host. Its files are those of this machine, except for /etc/hosts and /proc."""

    def __init__(self, name: str, hosts: Path) -> None:
        self.name = name
        kinds = ["--net", "--mount", "--uts", "--ipc", "--pid", "--mount-proc"]
        ends_with_tests = ["setpriv", "--pdeathsig", "KILL"]
        enter = ["unshare", *kinds, "--fork", "--kill-child"]
        self._outer = subprocess.Popen(
            [*ends_with_tests, *enter, "bash", "-c", INIT, "init", name, str(hosts)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._outer.stdout is not None
        assert self._outer.stderr is not None
        if self._outer.stdout.readline() != "ready\n":
            self._outer.kill()
            why = self._outer.stderr.read().strip()
            self._close()
            raise UnavailableError(f"this machine refuses namespaces, run it elsewhere: {why}")
        (inner,) = psutil.Process(self._outer.pid).children()
        self.pid = inner.pid

    def begin(self) -> None:
        """Let process 1 do its work."""
        assert self._outer.stdin is not None
        self._outer.stdin.write("\n")
        self._outer.stdin.flush()

    def command(self, words: Sequence[object], folder: Path) -> list[str]:
        """What runs a command on this node, in a folder."""
        enter = ["nsenter", f"--target={self.pid}", "--all", "env", f"--chdir={folder}"]
        return enter + [str(word) for word in words]

    def run(
        self,
        *words: object,
        folder: Path = Path("/"),
        environment: Mapping[str, str] | None = None,
        seconds: float = SETUP_SECONDS,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on this node to its end."""
        return subprocess.run(
            self.command(words, folder),
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def processes(self) -> dict[int, str]:
        """The command lines of the processes of this node, except for process 1 and its pauses."""
        own = os.readlink(f"/proc/{self.pid}/ns/pid")
        found = {}
        for process in psutil.process_iter():
            try:
                if os.readlink(f"/proc/{process.pid}/ns/pid") == own:
                    found[process.pid] = " ".join(process.cmdline())
            except (OSError, psutil.Error):  # it has ended
                continue
        return {
            pid: line
            for pid, line in found.items()
            if pid != self.pid and not line.startswith("sleep 3600")
        }

    def kill(self) -> None:
        """End all processes of this node; do not wait."""
        self._outer.kill()

    def end(self) -> None:
        """End all processes of this node."""
        self.kill()
        assert eventually(self._ended, SETUP_SECONDS), self.processes()
        self._close()

    def _ended(self) -> bool:
        try:
            os.readlink(f"/proc/{self.pid}/ns/net")
        except OSError:  # what is left is its exit code, for its new parent
            return True
        return False

    def _close(self) -> None:
        self._outer.wait()
        for pipe in (self._outer.stdin, self._outer.stdout, self._outer.stderr):
            assert pipe is not None
            pipe.close()


def connect(first: Node, others: Sequence[Node], addresses: Mapping[str, str]) -> None:
    """Join the nodes by a bridge, which is on the first one."""
    inside = ["nsenter", f"--target={first.pid}", "--net", "ip"]
    call(*inside, "link", "add", "bridge", "type", "bridge")
    for node in others:
        ends = ["name", node.name, "type", "veth", "peer", "name", "eth0", "netns", node.pid]
        call(*inside, "link", "add", *ends)
        call(*inside, "link", "set", node.name, "master", "bridge", "up")
        there = ["nsenter", f"--target={node.pid}", "--net", "ip"]
        call(*there, "address", "add", f"{addresses[node.name]}/24", "dev", "eth0")
        call(*there, "link", "set", "eth0", "up")
    call(*inside, "address", "add", f"{addresses[first.name]}/24", "dev", "bridge")
    call(*inside, "link", "set", "bridge", "up")
