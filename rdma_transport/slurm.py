"""What Slurm tells a task of a step, which ``srun`` started, in its environment."""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from rdma_transport.errors import BadInputError

_FIRST_PORT, _PORTS = 20000, 12000  # below those that Linux gives to connections


@dataclass(frozen=True)
class Step:
    """Task ``rank`` of the ``size`` tasks of a step; ``local_*`` count those of its node.

    ``cross_rank`` counts the nodes before this one that have a task with this ``local_rank``, and
    ``cross_size`` all such nodes.

    ``host`` is the node of rank 0, unless ``--distribution`` starts elsewhere; 127.0.0.1 if the
    step has one node.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    host: str
    job: str

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Local rank and size, cross rank and size."""
        return self.local_rank, self.local_size, self.cross_rank, self.cross_size


def find_step(environment: Mapping[str, str] = os.environ) -> Step | None:
    """Return the task that this process is; ``None`` outside of steps, as in a batch script.

    Raise ``BadInputError`` if a variable is malformed.
    """
    # A batch script has SLURM_PROCID=0 and SLURM_NTASKS, too, but it is not a task.
    if "SLURM_PROCID" not in environment or "SLURM_STEP_NUM_TASKS" not in environment:
        return None
    rank, size = (
        parse_number(environment, f"SLURM_{name}") for name in ("PROCID", "STEP_NUM_TASKS")
    )
    if rank >= size:
        raise BadInputError(f"SLURM_PROCID={rank} does not fit SLURM_STEP_NUM_TASKS={size}")
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID")
    alone = environment.get("SLURM_STEP_NUM_NODES", "1") == "1"
    local = parse_number({"SLURM_LOCALID": "0"} | dict(environment), "SLURM_LOCALID")
    tasks, node = _tasks_of_nodes(environment, size)
    alike = [count > local for count in tasks]
    return Step(
        rank,
        size,
        local,
        tasks[node],
        sum(alike[:node]),
        sum(alike),
        "127.0.0.1" if alone else first_host(environment.get("SLURM_STEP_NODELIST", "127.0.0.1")),
        ".".join(environment[name] for name in names if name in environment),
    )


def first_host(nodes: str) -> str:
    """Return the first name of a list of Slurm, such as ``rack[2-3]n[01-16,20],login``."""
    return re.sub(r"\[([^],-]*)[^]]*\]", r"\1", nodes).partition(",")[0]


def port_of(job: str) -> int:
    """Return the port at which the ranks of a job meet unless they are given one."""
    digest = hashlib.sha256(job.encode()).digest()
    return _FIRST_PORT + int.from_bytes(digest[:4]) % _PORTS


def parse_number(environment: Mapping[str, str], name: str) -> int:
    """Return the value of a variable; raise ``BadInputError`` if it is not a number."""
    text = environment[name]
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise BadInputError(f"{name}={text}: give a number")
    return int(text)


def _tasks_of_nodes(environment: Mapping[str, str], size: int) -> tuple[list[int], int]:
    """Return the numbers of tasks of all nodes, listed as in ``3(x2),1``, and this node's number.

    Those of a step of one node if they are not listed.
    """
    counts: list[int] = []
    for count, times in re.findall(
        r"(\d+)(?:\(x(\d+)\))?", environment.get("SLURM_STEP_TASKS_PER_NODE", "")
    ):
        counts += [int(count)] * int(times or 1)
    node = environment.get("SLURM_NODEID", "0")
    if node.isdigit() and int(node) < len(counts):
        return counts, int(node)
    return [size], 0
