"""A Slurm cluster on this machine: Debian's daemons, each on a node of its own."""

import os
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess

from tests.slurm import nodes
from tests.slurm.nodes import Node, UnavailableError
from tests.support.command import ROOT, clean_environment
from tests.support.deadlines import eventually

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
COMPUTE = ("n1", "n2", "n3", "n4")
ADDRESSES = {name: f"198.18.1.{number}" for number, name in enumerate(("login", *COMPUTE), 1)}
START_SECONDS = 60
# Nodes say that they have what the script of the documentation asks for.
CONFIGURATION = """
ClusterName=test
SlurmctldHost=login
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n.spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
PropagateResourceLimitsExcept=MEMLOCK
KillWait=5
NodeName=n[1-4] CPUs=32 RealMemory=65536 State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def check() -> None:
    """Raise `UnavailableError` if this machine cannot have such a cluster."""
    if os.geteuid() != 0:
        raise UnavailableError("network namespaces need root: run sudo make test-slurm")
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    lacking = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if lacking:
        raise UnavailableError(
            f"there is no {', '.join(lacking)}: make test-slurm installs Debian's packages"
        )


def _hosts(folder: Path, own: str) -> Path:
    """A file /etc/hosts, in which a compute node's own name is a loopback address, as on Debian."""
    addresses = ADDRESSES | ({own: "127.0.1.1"} if own in COMPUTE else {})
    names = [f"{address} {name}" for name, address in addresses.items()]
    path = folder / f"{own}.hosts"
    path.write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
    return path


class Slurm:
    """The controller on the node `login`, and the nodes of COMPUTE. Jobs run as root.

    Raises `UnavailableError`; `RuntimeError` if the daemons do not start.
    """

    def __init__(self, folder: Path) -> None:
        check()
        self.folder = folder
        self.nodes: dict[str, Node] = {}
        self.configuration = folder / "slurm.conf"
        self.configuration.write_text(CONFIGURATION.format(folder=folder))
        try:
            for name in ADDRESSES:
                self.nodes[name] = Node(name, _hosts(folder, name))
            self.login = self.nodes["login"]
            self.compute = [self.nodes[name] for name in COMPUTE]
            nodes.connect(self.login, self.compute, ADDRESSES)
            for node in self.nodes.values():
                node.begin()
            self._start_daemons()
        except BaseException:
            self.end()
            raise

    def _start_daemons(self) -> None:
        munge = self.folder / "munge"
        munge.mkdir()
        (munge / "key").write_bytes(secrets.token_bytes(1024))
        (munge / "key").chmod(0o400)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid"}
        files |= {"seed-file": "seed", "log-file": "log"}
        options = [f"--{option}={munge / name}" for option, name in files.items()]
        self._succeed(self.login, "/usr/sbin/munged", *options, "--force")
        self._succeed(self.login, "/usr/sbin/slurmctld", "-f", self.configuration)
        for node in self.compute:
            self._succeed(node, "/usr/sbin/slurmd", "-f", self.configuration, "-N", node.name)
        up = eventually(lambda: self.states() == dict.fromkeys(COMPUTE, "idle"), START_SECONDS)
        if not up:
            raise RuntimeError(f"Slurm does not start: {self.states()}\n{self.logs()}")

    def _succeed(self, node: Node, *words: object) -> None:
        ran = node.run(*words)
        if ran.returncode != 0:
            raise RuntimeError(f"{words[0]} does not start: {ran.stderr}\n{self.logs()}")

    def environment(self, settings: Mapping[str, str] | None = None) -> dict[str, str]:
        """That of a user's shell on the login node, in which the package is installed."""
        path = f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
        own = {"PATH": path, "SLURM_CONF": str(self.configuration), "CUDA_VISIBLE_DEVICES": ""}
        inherited = clean_environment(own | dict(settings or {}))
        return {name: value for name, value in inherited.items() if name != "PYTHONPATH"}

    def run(
        self,
        *words: object,
        folder: Path | None = None,
        settings: Mapping[str, str] | None = None,
        seconds: float = 60,
    ) -> CompletedProcess[str]:
        """Run a command on the login node to its end."""
        place = folder or self.folder
        return self.login.run(
            *words, folder=place, environment=self.environment(settings), seconds=seconds
        )

    def submit(
        self, *words: object, folder: Path, settings: Mapping[str, str] | None = None
    ) -> str:
        """Submit a job by sbatch; return its number."""
        ran = self.run("sbatch", "--parsable", *words, folder=folder, settings=settings)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """What `scontrol show job` says."""
        words = self.run("scontrol", "--oneliner", "show", "job", number).stdout.split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, number: str, seconds: float, states: tuple[str, ...] = ("COMPLETED",)) -> None:
        """Wait until a job is in one of these states; fail if it ends in another one."""
        ended = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}
        deadline = time.monotonic() + seconds
        while (state := self.job(number)["JobState"]) not in states:
            text = f"job {number} is {state}\n{self.logs()}\n{self.output(number)[-8000:]}"
            assert state not in ended, text
            assert time.monotonic() < deadline, text
            time.sleep(0.2)

    def output(self, number: str) -> str:
        """What a job wrote so far."""
        path = Path(self.job(number)["StdOut"])
        return path.read_text() if path.exists() else ""

    def states(self) -> dict[str, str]:
        """The state of each node."""
        lines = self.run("sinfo", "--Node", "--noheader", "--format=%N %T").stdout.splitlines()
        return dict(line.split(maxsplit=1) for line in lines)

    def processes(self) -> dict[str, dict[int, str]]:
        """The processes of jobs on each compute node."""
        return {
            node.name: {p: line for p, line in node.processes().items() if "slurmd " not in line}
            for node in self.compute
        }

    def logs(self) -> str:
        """The end of what each daemon logged."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{log.name}:\n{log.read_text()[-1500:]}" for log in logs)

    def end(self) -> None:
        """End all nodes, with the daemons and the jobs on them."""
        for node in self.nodes.values():
            node.kill()
        for node in self.nodes.values():
            node.end()
