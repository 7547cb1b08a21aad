"""Measures a step of Keras `fit` with TensorFlow 2's strategies, over gRPC and over rdma.

The model is an MLP with 32 MiB of weights, or with another --width. With batches of 4 a step is
mostly communication, with batches of 512 mostly arithmetic. Mirrored: TensorFlow's collectives sum
the gradients of all workers, and the losses must be equal bit for bit. More than two workers use
TensorFlow's ring over both protocols, because another order of summands rounds differently.
Parameter server: workers use one server and do not wait for each other, so the losses depend on
their order. Both protocols take turns.

usage: python -m bench.keras_fit [--workers 2] [--turns 4] [--epochs 3] [--steps 4] [--batch 4]
"""

import json
import math
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from .options import both, performed
from .report import MIN_SAMPLES, Result, Row, times_of
from .support.cluster import Cluster, Task, start_seconds
from .support.exit import run_command
from .support.options import choose
from .where import BOTH, Measure, Where

LAYERS = 2  # of bench.support.fitting
FITTING = Path(__file__).parent / "support" / "fitting.py"
TURN_SECONDS = 120
STEP_SECONDS = 2.0  # of processor time that a worker's step may take, with room to spare
MIB = 2**20
# Of each strategy the jobs besides the workers, and the job whose tasks call `fit`.
STRATEGIES = {
    "mirrored": ({}, "worker"),
    "parameter server": ({"ps": 1, "chief": 1}, "chief"),
}


@dataclass
class Side:
    """One protocol's cluster, and the results of its turns."""

    cluster: Cluster
    fitting: Sequence[Task]
    milliseconds: list[float] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    steps: int = 0
    sent: dict[str, int] = field(default_factory=dict)
    mib: float = 0.0  # the median task's PSS, of those that fit

    def turn(self, epochs: int, steps: int, batch: int) -> None:
        """Fit for so many epochs on all tasks, after one that is not counted."""
        for task in self.fitting:
            task.tell(f"{epochs} {steps} {batch}")
        limit = TURN_SECONDS + STEP_SECONDS * (epochs + 1) * steps * len(self.fitting)
        answers = [task.read(limit) for task in self.fitting]
        self.mib = statistics.median(task.pss_mib for task in self.fitting)
        self.milliseconds += answers[0]["ms"]
        self.losses += answers[0]["losses"]
        self.steps += (epochs + 1) * steps
        served = [task.stats() for task in self.cluster.tasks.values()]
        self.sent = {}
        for stats in [*served, *(answer["stats"] for answer in answers)]:
            for mode, count in stats["sent"].items():
                self.sent[mode] = self.sent.get(mode, 0) + count["bytes"]


def started(strategy: str, protocol: str, workers: int, width: int, stack: ExitStack) -> Side:
    """Start the cluster of a strategy; `stack` ends it."""
    others, fits = STRATEGIES[strategy]
    jobs = others | {"worker": workers}
    apart = [(fits, index) for index in range(jobs[fits])]
    cluster = stack.enter_context(Cluster(jobs, protocol, without=apart))
    tasks = []
    for job, index in apart:
        config = {"cluster": cluster.spec, "task": {"type": job, "index": index}}
        environment = {"TF_CONFIG": json.dumps(config | {"rpc_layer": protocol})}
        environment["BENCH_WIDTH"] = str(width)
        if workers > 2:
            environment["RDMA_TRANSPORT_COLLECTIVES"] = "ring"
        tasks.append(Task(job, index, protocol, cluster.spec, environment, program=FITTING))
        stack.callback(tasks[-1].end)
    for task in tasks:
        assert task.wait_ready(start_seconds(sum(jobs.values()))) == {"ready": True}
    return Side(cluster, tasks)


def measure(
    strategy: str, workers: int, width: int, turns: int, epochs: int, steps: int, batch: int
) -> list[Row]:
    """One strategy's rows, by protocol; mirrored workers' losses are compared."""
    with ExitStack() as stack:
        sides = {protocol: started(strategy, protocol, workers, width, stack) for protocol in BOTH}
        for side in sides.values():
            side.turn(1, steps, batch)
            side.milliseconds.clear()  # made functions and, over rdma, agreed on places
        for _ in range(turns):
            for side in sides.values():
                side.turn(epochs, steps, batch)
    rows = []
    for protocol, side in sides.items():
        wrong = None
        if strategy == "mirrored":
            wrong = sum(a != b for a, b in zip(side.losses, sides["grpc"].losses, strict=True))
        times = times_of([1e3 * each for each in side.milliseconds])
        size = LAYERS * width * width * 4
        row = Row("step", strategy, size, protocol, len(side.milliseconds), times, wrong=wrong)
        row.series["losses"] = list(side.losses)
        row.more.update({"PSS, MiB": round(side.mib), "steps": side.steps})
        if protocol == "rdma":
            row.more.update(
                {f"MiB/step {mode}": bytes / side.steps / MIB for mode, bytes in side.sent.items()}
            )
        rows.append(row)
    return rows


def keras_fit(where: Where, strategies: Sequence[str], workers: int, *more: int) -> Result:
    """Rows for each strategy; `more` are the further arguments of measure()."""
    names = ("workers", "width", "turns", "epochs", "steps", "batch")
    options = dict(zip(names, (workers, *more), strict=True))
    title = f"step of Keras fit with {workers} workers and batches of {options['batch']}"
    result = Result("keras-fit", title, options, "p50", unit="ms")
    for strategy in where.bar.track(strategies, "strategy"):
        result.rows += measure(strategy, workers, *more)
    for row in result.rows:
        if not all(math.isfinite(float.fromhex(loss)) for loss in row.series["losses"]):
            result.problems.append(f"{row.name}, {row.protocol}: a loss is not finite")
    result.notes.append("#bytes: of the weights. #wrong: epochs whose losses differ.")
    result.compare()
    return result


@performed(both)
def main(
    strategies: Annotated[
        str, typer.Option(help="Measure these strategies, separated by commas.")
    ] = ",".join(STRATEGIES),
    workers: Annotated[int, typer.Option(help="Start this many workers.", min=2)] = 2,
    width: Annotated[
        int, typer.Option(help="Set the rows and columns of each of two weights.", min=1)
    ] = 2048,
    turns: Annotated[int, typer.Option(help="Run this many turns per protocol.", min=1)] = 4,
    epochs: Annotated[int, typer.Option(help="Measure this many epochs per turn.", min=1)] = 3,
    steps: Annotated[int, typer.Option(help="Run this many steps per epoch.", min=1)] = 4,
    batch: Annotated[int, typer.Option(help="Set the rows per worker and step.", min=1)] = 4,
) -> Measure:
    """Print the time of a step of `fit` with each strategy over both protocols."""
    chosen = choose(strategies, STRATEGIES, "strategy", "--strategies")
    if turns * epochs < MIN_SAMPLES:
        raise typer.BadParameter(
            f"{turns} turns times {epochs} epochs are less than {MIN_SAMPLES}", param_hint="--turns"
        )
    return lambda where: keras_fit(where, chosen, workers, width, turns, epochs, steps, batch)


if __name__ == "__main__":
    run_command(main)
