"""Running example scripts as clusters, and what became of them."""

import os
import re
import subprocess
import threading
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from bench.support.python import Process
from examples.launch import LocalCluster, Task
from rdma_transport.live import LiveServer
from tests.support import forked
from tests.support.deadlines import eventually

STRATEGIES = Path(__file__).parent.parent.parent / "examples" / "strategies"
PARAMETER_SERVER = (("chief", 1), ("ps", 1), ("worker", 2))
MIRRORED = (("worker", 2),)
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "1"}
FABRIC = ("static", "dynamic", "inline")


class ForkedTask(Task):
    def begin(self, command: list[str], environment: dict[str, str], plain: bool) -> Process:
        assert not plain
        return forked.Process(
            command[1:],
            environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            modules=forked.KERAS_2,
        )


class ForkedCluster(LocalCluster):
    task_type = ForkedTask


class MixedCluster(ForkedCluster):
    """Tasks of which those in `exceptions` have another protocol, and no plugin if it is gRPC."""

    def __init__(self, *arguments: Any, exceptions: dict[str, str], **keywords: Any) -> None:
        self.exceptions = exceptions
        super().__init__(*arguments, **keywords)

    def start(self, job: str, index: int) -> Task:
        usual = self.protocol, self.environment
        self.protocol = self.exceptions.get(f"{job}:{index}", self.protocol)
        self.environment = self.environment | {
            "RDMA_TRANSPORT_DISABLE": "1" if self.protocol == "grpc" else "0"
        }
        try:
            return super().start(job, index)
        finally:
            self.protocol, self.environment = usual


@dataclass
class Outcome:
    """By task: the losses that it printed, with all bits, and the last known of its transport."""

    losses: dict[str, list[str]] = field(default_factory=dict)
    stats: dict[str, dict[str, Any]] = field(default_factory=dict)


@cache
def outcome(
    script: str,
    jobs: tuple[tuple[str, int], ...],
    protocol: str,
    arguments: tuple[str, ...] = (),
    settings: tuple[tuple[str, str], ...] = (),
    exceptions: tuple[tuple[str, str], ...] = (),
    seconds: float = 90,
) -> Outcome:
    """Run the script in a cluster of these jobs until its chief, or all its workers, ended well."""
    result = Outcome()
    with MixedCluster(
        STRATEGIES / script,
        dict(jobs),
        protocol,
        arguments,
        ENVIRONMENT | dict(settings),
        exceptions=dict(exceptions),
    ) as cluster:
        trained = threading.Event()
        watch = threading.Thread(target=_watch, args=(cluster, trained, result.stats))
        watch.start()
        first = cluster.tasks.get("chief:0")
        awaited = [first] if first else list(cluster.tasks.values())
        ended = eventually(lambda: all(task.code is not None for task in awaited), seconds)
        trained.set()
        watch.join()
        for task in awaited:
            assert ended, f"{task.name} hangs\n" + tail(task)
            task.end()
            assert task.code == 0, f"{task.name} failed\n" + tail(task)
            (result.losses[task.name],) = (
                line.split()[1:] for line in task.lines if re.match("losses ", line)
            )
    return result


def _watch(cluster: LocalCluster, ended: threading.Event, stats: dict[str, Any]) -> None:
    """Keep what each task's transport did; at the end only of those that still run."""
    while True:
        last = ended.wait(0.2)
        for name, task in cluster.tasks.items():
            found = stats_of(task)
            if found is not None:
                stats[name] = found
        if last:
            return


def stats_of(task: Task) -> dict[str, Any] | None:
    """What its transport did; None if it has none, or not yet, or no more."""
    try:
        return LiveServer(task.process.pid, os.geteuid()).stats()
    except ConnectionError:
        return None


def tail(task: Task, lines: int = 40) -> str:
    return "\n".join(list(task.lines)[-lines:])


def bytes_by_fabric(outcome: Outcome, *exempt: str) -> int:
    """What all tasks sent by the fabric; only for the reasons `exempt` may others go by gRPC."""
    reasons = {reason for stats in outcome.stats.values() for reason in stats["fallback_reasons"]}
    assert reasons <= set(exempt), reasons
    return sum(stats["sent"][p]["bytes"] for stats in outcome.stats.values() for p in FABRIC)
