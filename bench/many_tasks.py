"""Trains with many tasks on this host: the same steps over gRPC and over rdma, one after the other.

The graph of a small network is replicated over all workers, and parameter servers hold its
variables. In the middle a third of the workers are killed during a step and started again. The job
then goes on, in a new session, with the values that the variables had before that step, as from a
checkpoint. All losses must be equal bit for bit.

usage: python -m bench.many_tasks [--servers 2] [--workers 32] [--steps 1000] [--json]
"""

import signal
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import typer

from .models.layers import cross_entropy, dense, linear
from .models.model import Model, Variables
from .models.training import TrainingGraph, training_graph
from .options import both, performed
from .report import Result, Row, times_of
from .support.cluster import Cluster
from .support.exit import run_command
from .support.tf_import import import_tensorflow
from .where import BOTH, Measure, Where

BATCH = 8  # examples per worker
HIDDEN = 512
CLASSES = 10
RECOVER_SECONDS = 120.0  # until a step succeeds again
MIB = 2**20


def _loss(features: Any, labels: Any, get: Variables) -> Any:
    x = dense(dense(features, get, "dense1", HIDDEN), get, "dense2", HIDDEN)
    return cross_entropy(linear(x, get, "dense3", CLASSES), labels)


MODEL = Model("mlp", (784,), CLASSES, None, _loss, variables=6, mib=2.55, deviation=0.1)


@dataclass
class Run:
    """What one protocol's job did."""

    start_seconds: float = 0.0  # until all tasks are ready
    milliseconds: list[float] = field(default_factory=list)  # of steps that succeeded
    losses: list[list[str]] = field(default_factory=list)  # per step and worker, all bits
    mib: dict[str, float] = field(default_factory=dict)  # by job, the median task's PSS
    sent: dict[str, int] = field(default_factory=dict)  # bytes by mode, of tasks that live
    failed_steps: int = 0
    error: str = ""  # of the first failed step
    recovery_seconds: float = 0.0  # from the kill to the next step that succeeds


class Job:
    """A running job: its cluster and its session."""

    def __init__(self, cluster: Cluster, made: TrainingGraph, run: Run) -> None:
        import tensorflow as tf

        self.cluster, self.made, self.run = cluster, made, run
        with made.graph.as_default():
            self.variables = tf.compat.v1.global_variables()
            self.fed, assigned = [], []
            for variable in self.variables:
                with tf.device(variable.device):
                    self.fed.append(tf.compat.v1.placeholder(variable.dtype, variable.shape))
                    assigned.append(
                        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=self.fed[-1])
                    )
            self.assigned = tf.group(*assigned)

    @contextmanager
    def session(self) -> Iterator[Any]:
        """A new session; must end before the cluster does."""
        from .support.session import config, opened

        with opened(self.cluster.target("worker"), self.made.graph, config()) as session:
            yield session

    def steps(self, session: Any, count: int, progress: Any) -> None:
        """Take so many steps."""
        for _ in range(count):
            start = time.perf_counter()
            losses, _ = session.run([self.made.losses, self.made.train])
            self.run.milliseconds.append(1e3 * (time.perf_counter() - start))
            self.run.losses.append([float(loss).hex() for loss in losses])
            progress()

    def lose_workers(self, session: Any, lost: range) -> list[Any]:
        """Kill workers during a step and start them again; return the values before that step."""
        values = session.run(self.variables)
        with ThreadPoolExecutor(1) as pool:
            stepping = pool.submit(self._step_until_it_fails, session)
            for index in lost:
                self.cluster["worker", index].signal(signal.SIGKILL)
            for index in lost:  # on this thread: the kernel kills tasks when their starter ends
                self.cluster.restart("worker", index)
            stepping.result()
        return list(values)

    def _step_until_it_fails(self, session: Any) -> None:
        import tensorflow as tf

        try:
            while True:
                session.run([self.made.losses, self.made.train])
        except tf.errors.OpError as error:
            self.run.failed_steps += 1
            self.run.error = type(error).__name__

    def restore(self, session: Any, values: list[Any]) -> None:
        """Give the variables these values; try again while tasks find each other."""
        import tensorflow as tf

        deadline = time.monotonic() + RECOVER_SECONDS
        while True:
            try:
                session.run(self.assigned, dict(zip(self.fed, values, strict=True)))
                session.run(self.made.losses)
                return
            except tf.errors.OpError as error:
                self.run.failed_steps += 1
                if time.monotonic() > deadline:
                    raise RuntimeError(f"no step for {RECOVER_SECONDS:.0f} s: {error}") from None

    def look(self) -> None:
        """Note the memory of each job's tasks, and what they sent."""
        for job in ("ps", "worker"):
            tasks = [task for (name, _), task in self.cluster.tasks.items() if name == job]
            self.run.mib[job] = statistics.median(task.pss_mib for task in tasks)
        counted = self.cluster.counted()
        if counted is not None:
            self.run.sent = {mode: count["bytes"] for mode, count in counted["sent"].items()}


def train(
    protocol: str, servers: int, workers: int, steps: int, restart: bool, progress: Any
) -> Run:
    """Run the job over one protocol."""
    import_tensorflow()
    made = training_graph(
        MODEL,
        batch=BATCH,
        workers=[f"/job:worker/task:{index}" for index in range(workers)],
        servers=[f"/job:ps/task:{index}" for index in range(servers)],
    )
    run = Run()
    start = time.monotonic()
    with Cluster({"ps": servers, "worker": workers}, protocol) as cluster:
        run.start_seconds = time.monotonic() - start
        job = Job(cluster, made, run)
        half = steps // 2 if restart else steps
        values: list[Any] = []
        killed = 0.0
        with job.session() as session:
            session.run(made.initializer)
            job.steps(session, half, progress)
            if restart:
                killed = time.monotonic()
                # Not worker 0, which runs the session.
                values = job.lose_workers(session, range(workers - max(workers // 3, 1), workers))
        if restart:
            with job.session() as session:
                job.restore(session, values)
                run.recovery_seconds = time.monotonic() - killed
                job.steps(session, steps - half, progress)
        job.look()
    return run


def many_tasks(where: Where, servers: int, workers: int, steps: int, restart: bool) -> Result:
    """A row for each protocol, one after the other; wrong: steps whose losses differ."""
    options = {"servers": servers, "workers": workers, "steps": steps, "restart": restart}
    title = f"step of {servers} parameter servers and {workers} workers on this host"
    result = Result("many-tasks", title, options, "p50", unit="ms")
    runs: dict[str, Run] = {}
    for index, protocol in enumerate(BOTH):
        done = iter(
            where.bar.section(index, len(BOTH)).track(range(steps + 1), f"{protocol}: step")
        )
        next(done)
        runs[protocol] = train(protocol, servers, workers, steps, restart, lambda at=done: next(at))
    first = runs["grpc"].losses
    for protocol, run in runs.items():
        times = times_of([1e3 * each for each in run.milliseconds])
        row = Row("step", MODEL.name, round(MODEL.mib * MIB), protocol, len(run.losses), times)
        row.more.update({"start, s": round(run.start_seconds, 1)})
        row.more.update({f"PSS, MiB: {job}": round(mib) for job, mib in run.mib.items()})
        if run.failed_steps:
            row.more.update({"failed": run.failed_steps, "first error": run.error})
            row.more.update({"recovery, s": round(run.recovery_seconds, 1)})
        wrong = sum(a != b for a, b in zip(run.losses, first, strict=True))
        result.rows.append(replace(row, wrong=wrong, series={"losses": run.losses}))
    sent = {mode: bytes / MIB for mode, bytes in runs["rdma"].sent.items() if bytes}
    modes = ", ".join(f"{mode} {mib:.1f} MiB" for mode, mib in sent.items())
    result.notes.append(f"sent over rdma by the tasks that live: {modes}")
    result.compare()
    return result


@performed(both)
def main(
    servers: Annotated[int, typer.Option(min=1, help="Start this many parameter servers.")] = 2,
    workers: Annotated[int, typer.Option(min=2, help="Start this many workers.")] = 32,
    steps: Annotated[int, typer.Option(min=4, help="Take this many steps.")] = 1000,
    restart: Annotated[
        bool, typer.Option("--restart/--no-restart", help="Kill a third of the workers halfway.")
    ] = True,
) -> Measure:
    """Train with many tasks over both protocols, and compare the losses bit for bit."""
    return lambda where: many_tasks(where, servers, workers, steps, restart)


if __name__ == "__main__":
    run_command(main)
