"""The hosts of an elastic job that a file or a command lists, and the launchers on them."""

import os
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rdma_transport.errors import BadInputError

_EVERY = 1.0  # seconds
_LONGEST = 30.0  # seconds, of a command that lists hosts
_AGAIN = 60.0  # seconds, at most, until a launcher that has ended is started again
_GRACE = 15.0  # seconds, for launchers to end with the job
# What a launcher on another host gets of this one's environment.
_PASSED = re.compile(
    r"(PATH|PYTHONPATH|LD_LIBRARY_PATH|VIRTUAL_ENV|TMPDIR|LANG)$"
    r"|(RDMA_TRANSPORT|TF|XLA|KERAS|CUDA|NVIDIA|OMP|MKL|HOROVOD)_"
)
_LINE = re.compile(r"([^\s:=]+)(?:\s*:\s*(\d+)|\s+slots\s*=\s*(\d+))?")


def parse_hosts(text: str, slots: int) -> dict[str, int]:
    """Return the ranks of each host, listed as ``host:2``, ``host slots=2`` or ``host`` by lines.

    `slots`: of a host without a number. Raise ``BadInputError``.
    """
    found: dict[str, int] = {}
    for line in text.splitlines():
        if not (words := line.partition("#")[0].strip()):
            continue
        match = _LINE.fullmatch(words)
        if match is None or int(match[2] or match[3] or slots) < 1:
            raise BadInputError(f"{words[:80]!r} is no host: give lines such as node1:4")
        found[match[1]] = int(match[2] or match[3] or slots)
    return found


@dataclass(frozen=True)
class Listing:
    """Where hosts are listed: in a file, or by a command; and how a launcher is started there."""

    file: str
    script: str
    slots: int
    launch_with: str

    def read(self) -> dict[str, int]:
        """Return the ranks of each host; raise ``BadInputError``."""
        try:
            if self.file:
                with open(self.file) as file:
                    text = file.read()
            else:
                ran = subprocess.run(
                    shlex.split(self.script),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    text=True,
                    timeout=_LONGEST,
                    check=True,
                )
                text = ran.stdout
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise BadInputError(
                f"cannot list hosts by {self.file or self.script}: {error}"
            ) from None
        return parse_hosts(text, self.slots)

    def command(self, host: str, own: str, words: Sequence[str]) -> list[str]:
        """Return what runs a command on a host; `own` is an address of this one."""
        if host in ("localhost", socket.gethostname(), own) or host.startswith("127."):
            return list(words)
        passed = [f"{name}={value}" for name, value in os.environ.items() if _PASSED.match(name)]
        line = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(['env', *passed, *words])}"
        return [*(word.replace("{host}", host) for word in shlex.split(self.launch_with)), line]


@dataclass
class _Launched:
    """The launcher on a host."""

    node: int
    slots: int
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    next_start: float = 0.0


@dataclass
class Discovery:
    """Reads a listing every second: starts launchers, and lets those leave that are not listed.

    `host` and `port`: where launchers connect to this one. `words`: the options and the command
    that all are given.
    """

    listing: Listing
    host: str
    port: int
    words: Sequence[str]
    _hosts: dict[str, _Launched] = field(default_factory=dict)
    _listed: dict[str, int] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)
    _error: str = ""

    def begin(self) -> dict[int, int]:
        """Read the hosts with which the job begins; return their ranks by launcher."""
        return self._take(self.listing.read())

    def start(self, tell: Callable[[Mapping[int, int]], None]) -> None:
        """Start the launchers. `tell`: is given the ranks by launcher, when they change."""
        self._tell = tell
        self._thread = threading.Thread(target=self._run, name="elastic_discovery", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Wait for the launchers, which end with the job; end those that do not."""
        self._over.set()
        self._thread.join(_LONGEST)
        running = [each.process for each in self._hosts.values() if each.process]
        deadline = time.monotonic() + _GRACE
        for process in running:
            try:
                process.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _take(self, listed: dict[str, int]) -> dict[int, int]:
        self._listed = listed
        for host, slots in listed.items():
            known = self._hosts.setdefault(host, _Launched(len(self._hosts) + 1, slots))
            known.slots = slots
        return {self._hosts[host].node: slots for host, slots in listed.items()}

    def _run(self) -> None:
        while not self._over.is_set():
            for host in self._listed:
                self._keep(host, self._hosts[host])
            self._over.wait(_EVERY)
            try:
                listed = self.listing.read()
            except BadInputError as error:
                self._warn(f"{error}; the hosts stay what they are")
                continue
            self._error = ""
            if listed != self._listed:
                self._tell(self._take(listed))

    def _keep(self, host: str, launched: _Launched) -> None:
        """Start a launcher that is new or has ended, after a pause that grows."""
        now = time.monotonic()
        if launched.process is not None and launched.process.poll() is not None:
            launched.process = None
            launched.next_start = now + min(2.0**launched.starts, _AGAIN)
        if launched.process is None and now >= launched.next_start:
            launched.starts += 1
            try:
                launched.process = subprocess.Popen(
                    self.listing.command(host, self.host, self._command(launched)),
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C comes from this launcher only
                )
            except OSError as error:
                launched.next_start = now + _AGAIN
                self._warn(f"cannot start a launcher on {host}: {error}")

    def _command(self, launched: _Launched) -> list[str]:
        words = [sys.executable, "-m", "rdma_transport", "run", "--elastic"]
        words += ["--node-rank", str(launched.node), "--ranks", str(launched.slots)]
        words += ["--master-addr", self.host, "--master-port", str(self.port)]
        return [*words, *self.words]

    def _warn(self, text: str) -> None:
        if text != self._error:
            self._error = text
            print(f"warning: {text}", file=sys.stderr, flush=True)
