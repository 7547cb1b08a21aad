"""Two hosts on this machine: network namespaces, joined by a veth pair and by nothing else.

A namespace here has no name. It lasts as long as a process or a descriptor holds it, so nothing is
left behind, even if this process is killed. The network of this machine does not change. It needs
root.
"""

import contextlib
import ctypes
import errno
import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Generic, TypeVar

from . import python
from .cluster import eventually
from .exit import NotAvailableError
from .hosts import Layout, everything_here, joined

CLONE_NEWNET = 0x40000000
FIRST_PORT = 7001
ADDRESSES = ("198.18.0.1", "198.18.0.2")  # a range that is not used on the Internet
INTERFACE = "eth0"
NETWORK = "198.18.0.0/24"
COMMAND_SECONDS = 20
Result = TypeVar("Result")
_libc = ctypes.CDLL(None, use_errno=True)


class UnavailableError(Exception):
    """This machine cannot have such hosts; the message says why."""


def enter(network: str) -> None:
    """Move this thread, and what it starts from now on, into a namespace, given by a path."""
    descriptor = os.open(network, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(descriptor, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(descriptor)


class Host:
    """A network namespace with one interface; a `Place`."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._ports = itertools.count(FIRST_PORT)
        # The thread that makes the namespace stays in it.
        self._inside = ThreadPoolExecutor(1)
        try:
            self._descriptor = self.call(_new_network)
        except OSError as error:
            self._inside.shutdown()
            raise UnavailableError(f"no network namespaces: {error.strerror}") from None
        self.network = f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def call(self, function: Callable[[], Result]) -> Result:
        """Call it in a thread of this host. Processes that it starts are on this host, too."""
        return self._inside.submit(function).result()

    def run(self, *command: str) -> str:
        """Run a command to its end; return its standard output."""
        words = [_path_of(command[0]), *command[1:]]
        ran = self.call(
            lambda: subprocess.run(
                words,
                capture_output=True,
                text=True,
                timeout=COMMAND_SECONDS,
                check=False,
            )
        )
        if ran.returncode != 0:
            raise UnavailableError(f"{' '.join(command)}: {ran.stderr.strip()}")
        return ran.stdout

    def link(self, up: bool) -> None:
        """Connect this host's interface, or disconnect it."""
        self.run("ip", "link", "set", INTERFACE, "up" if up else "down")

    def running(self) -> bool:
        """Whether the interface is up, and so is the other end."""
        return "state UP" in self.run("ip", "-oneline", "link", "show", INTERFACE)

    def address(self) -> str:
        """Return a new HOST:PORT of this host."""
        return joined(self.host, next(self._ports))

    def limit(self, rate: str) -> None:
        """Limit what this host sends, such as to "1gbit"; an empty text ends the limit."""
        words = f"tbf burst 128kb latency 50ms rate {rate}".split() if rate else ["noqueue"]
        self.run("tc", "qdisc", "replace", "dev", INTERFACE, "root", *words)

    def control(self, algorithm: str) -> None:
        """Set the congestion control of TCP connections to the other host, such as to "cubic".

        Only the route is changed: a namespace takes few algorithms as its default.
        """
        words = f"{NETWORK} dev {INTERFACE} src {self.host} congctl {algorithm}"
        self.run("ip", "route", "replace", *words.split())

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None,
        stderr: IO[str],
        file_size_limit: int | None = None,
    ) -> python.Process:
        """Start a program of bench/support on this host."""
        return self.call(lambda: python.start(arguments, environment, stderr, file_size_limit))

    def end(self) -> None:
        """End the thread of this host, and let go of the namespace."""
        self._inside.shutdown()
        os.close(self._descriptor)


def _path_of(command: str) -> str:
    """Return where a command of iproute2 is, also for a shell whose PATH has no such folders."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    found = shutil.which(command, path=path)
    if found is None:
        raise UnavailableError(
            f"there is no command {command}. Install it: apt-get install iproute2"
        )
    return found


def _new_network() -> int:
    """Move this thread into a new namespace; return a descriptor of it."""
    if _libc.unshare(CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        why = "needs root" if number == errno.EPERM else os.strerror(number)
        raise OSError(number, f"unshare: {why}")
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


AnyHost = TypeVar("AnyHost", bound=Host)


class Hosts(Generic[AnyHost]):
    """Two hosts and the link between them; `make` makes a host with an address."""

    def __init__(self, make: Callable[[str], AnyHost]) -> None:
        _path_of("ip")
        with contextlib.ExitStack() as stack:
            self.both: list[AnyHost] = []
            for address in ADDRESSES:
                self.both.append(make(address))
                stack.callback(self.both[-1].end)
            self.first, self.second = self.both
            pair = f"link add {INTERFACE} type veth peer name {INTERFACE} netns"
            self.first.run("ip", *pair.split(), self.second.network)
            for host in self.both:
                host.run("ip", "address", "add", f"{host.host}/24", "dev", INTERFACE)
                host.run("ip", "link", "set", "lo", "up")
                host.link(up=True)
            # The kernel finds out a while later, and tasks use no interface before.
            if not all(eventually(host.running, COMMAND_SECONDS) for host in self.both):
                raise UnavailableError("the link between two namespaces does not come up")
            self._ending = stack.pop_all()

    def place(self, job: str, index: int) -> AnyHost:
        """Where a task runs: the servers `b` and `ps` on the second host, workers in turn."""
        return self.both[index % 2] if job == "worker" else self.apart(job, index)

    def apart(self, job: str, index: int) -> AnyHost:
        """Where a task runs: `b` and `ps` on the second host, all others on the first."""
        return self.second if job in ("b", "ps") else self.first

    def end(self) -> None:
        """Undo everything."""
        self._ending.close()


@contextlib.contextmanager
def measured_between(control: str, in_turn: bool = False) -> Iterator[Layout]:
    """Lay tasks out on two hosts, between which TCP has this congestion control; if "", here.

    Workers are on the two hosts `in_turn`, or on the first one. This thread, and those that it
    starts from now on, are on the first host. Raise NotAvailableError if there can be no hosts.
    """
    if not control:
        yield everything_here
        return
    with contextlib.ExitStack() as stack:
        try:
            hosts = Hosts(Host)
            stack.callback(hosts.end)
            for host in hosts.both:
                host.control(control)
        except UnavailableError as error:
            raise NotAvailableError(str(error)) from None
        enter(hosts.first.network)
        yield hosts.place if in_turn else hosts.apart
