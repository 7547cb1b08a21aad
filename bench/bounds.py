"""Measures how soon a step ends after a failure: a killed, stopped or restarted task, and others.

Two tasks pass a tensor back and forth inside one step, and the second one fails. Both protocols run
in turns. If gRPC does not report the failure, its time is the timeout of the step, --timeout.

usage: python -m bench.bounds [--rounds 6] [--load 4] [--json]
"""

import secrets
import signal
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from .options import both, performed
from .report import Result, Row, times_of
from .support.cluster import Cluster, Task
from .support.exit import run_command
from .support.load import busy
from .support.tf_import import import_tensorflow
from .where import BOTH, Measure, Where

JOBS = {"a": 1, "b": 1}
UNDER_WAY = 0.3  # seconds that a step has run when something happens
PAUSE = 0.05  # between two attempts


@dataclass
class Case:
    """The times and errors of one kind of failure over one protocol."""

    seconds: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, seconds: float, error: str) -> None:
        """Record a step that ended after `seconds`, with this error or ""."""
        self.seconds.append(seconds)
        self.errors[error] += 1


Results = defaultdict[str, dict[str, Case]]  # by what happens, and by protocol


class Steps:
    """A session at the first task, and the steps that it runs."""

    def __init__(self, stack: ExitStack, cluster: Cluster, timeout: float) -> None:
        import tensorflow as tf

        from .support.session import config, endless, opened, v1

        self.errors = tf.errors.OpError
        self.options = v1.RunOptions(timeout_in_ms=int(timeout * 1000))
        graph = tf.Graph()
        a, b = (f"/job:{job}/task:0" for job in JOBS)
        with graph.as_default():
            with tf.device(a):
                data = tf.random.uniform([30_000])
                self.told = v1.placeholder(tf.bool, [])
            with tf.device(b):
                there = tf.negative(data)
                sign = tf.where(self.told, -1.0, 1.0)
                checked = tf.debugging.check_numerics(tf.math.log(there * 0 + sign), "told to")
            with tf.device(a):
                self.short = tf.reduce_sum(there + data)
                self.failing = tf.reduce_sum(checked)

            self.endless = endless(a, b, 30_000)
        self.session = stack.enter_context(opened(cluster.target("a"), graph, config()))

    def run(self, fetches: Any, fails: bool = False) -> str:
        """The name of the error that the step ends in; empty: none."""
        try:
            self.session.run(fetches, {self.told: fails}, options=self.options)
        except self.errors as error:
            return type(error).__name__
        return ""

    def timed(self, fetches: Any, case: Case, fails: bool = False) -> None:
        """Run a step, and add its time and its error to `case`."""
        begun = time.monotonic()
        error = self.run(fetches, fails)
        case.add(time.monotonic() - begun, error)


def after(steps: Steps, happens: Callable[[], None], case: Case) -> None:
    """Let something happen while an endless step runs, and time the step's end from then."""
    ended: list[tuple[float, str]] = []

    def run() -> None:
        error = steps.run(steps.endless)
        ended.append((time.monotonic(), error))

    step = threading.Thread(target=run, daemon=True)
    step.start()
    time.sleep(UNDER_WAY)
    begun = time.monotonic()
    happens()
    step.join()
    case.add(ended[0][0] - begun, ended[0][1])


def until_good(stack: ExitStack, cluster: Cluster, timeout: float, case: Case) -> Steps:
    """New sessions until a step succeeds; counts the steps that failed before it."""
    begun = time.monotonic()
    failed = 0
    while True:
        steps = Steps(stack, cluster, timeout)
        error = steps.run(steps.short)
        if not error:
            case.add(time.monotonic() - begun, "failed before" if failed else "")
            return steps
        failed += 1
        if time.monotonic() - begun > timeout:
            raise RuntimeError(f"no step succeeds after a restart: {error}")
        time.sleep(PAUSE)


def life(results: Results, protocol: str, timeout: float) -> None:
    """One round on one cluster: first what it survives, then what kills its second task."""

    def case(what: str) -> Case:
        return results[what][protocol]

    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(JOBS, protocol))
        steps = Steps(stack, cluster, timeout)
        steps.run(steps.short)
        for _ in range(3):
            steps.timed(steps.failing, case("an operation fails"), fails=True)
        b = cluster["b", 0]
        after(steps, lambda: b.signal(signal.SIGSTOP), case("the peer is stopped"))
        b.signal(signal.SIGCONT)
        begun = time.monotonic()
        while (error := steps.run(steps.short)) and time.monotonic() - begun < timeout:
            time.sleep(PAUSE)
        case("the peer resumes: first good step").add(time.monotonic() - begun, error)
        after(steps, lambda: b.signal(signal.SIGKILL), case("the peer is killed in a step"))
        cluster.restart("b", 0)
        restarted = case("the peer is restarted: first good step")
        steps = until_good(stack, cluster, timeout, restarted)
        cluster["b", 0].signal(signal.SIGKILL)
        steps.timed(steps.short, case("the peer is killed between steps"))


def refusals(results: Results, timeout: float) -> None:
    """Two tasks with different secrets, and no gRPC instead."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        environments = []
        for job in JOBS:
            path = folder / job
            path.touch(mode=0o600)
            path.write_text(secrets.token_hex(32) + "\n")
            environments.append(
                {"RDMA_TRANSPORT_SECRET_FILE": str(path), "RDMA_TRANSPORT_FALLBACK": "forbid"}
            )
        without_b = Cluster(JOBS, "rdma", environments[0], without=[("b", 0)])
        cluster = stack.enter_context(without_b)
        cluster.tasks["b", 0] = task = Task("b", 0, "rdma", cluster.spec, environments[1])
        task.wait_ready()
        steps = Steps(stack, cluster, timeout)
        for _ in range(3):
            steps.timed(steps.short, results["the peer has a different secret"]["rdma"])


def bounds(where: Where, rounds: int, load: int, timeout: float) -> Result:
    """Rows of what happens, by protocol; the times are until the step ends."""
    where.bar.at(0, "importing TensorFlow")
    import_tensorflow()
    options = {"rounds": rounds, "load": load, "timeout": timeout}
    title = "how soon a step ends" + (f", beside {load} busy loops" if load else "")
    result = Result("bounds", title, options, "p50", unit="s")
    results: Results = defaultdict(lambda: {each: Case() for each in BOTH})
    with busy(load):
        for number in where.bar.track(range(rounds), "round"):
            for protocol in BOTH if number % 2 == 0 else BOTH[::-1]:
                life(results, protocol, timeout)
            refusals(results, timeout)
    for what, cases in results.items():
        for protocol, case in cases.items():
            if case.seconds:
                named = "step", what, 0, protocol, len(case.seconds)
                row = Row(*named, times_of([1e6 * each for each in case.seconds]))
                row.more["worst, s"] = round(max(case.seconds), 2)
                said = (f"{count} {error}" for error, count in case.errors.items() if error)
                row.more["reports"] = ", ".join(said)
                result.rows.append(row)
    return result


@performed(both)
def main(
    rounds: Annotated[int, typer.Option(min=1, help="Run this many rounds per protocol.")] = 6,
    load: Annotated[
        int, typer.Option(min=0, help="Run this many busy loops during the measurement.")
    ] = 0,
    timeout: Annotated[
        float, typer.Option(min=1, help="Set the timeout of a step in seconds.")
    ] = 20,
) -> Measure:
    """Measure how soon a step ends after a failure, over gRPC and over rdma.

    A task is stopped and continued, or killed and restarted; an operation fails; a secret differs.
    """
    return lambda where: bounds(where, rounds, load, timeout)


if __name__ == "__main__":
    run_command(main)
