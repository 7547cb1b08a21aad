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
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from .support.cluster import Cluster, Task, start_seconds
from .support.exit import run_command
from .support.machine import describe
from .support.options import JsonFile, choose, save
from .support.timing import ratio, summarize

PROTOCOLS = ("grpc", "rdma")
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
) -> dict[str, Any]:
    """One strategy's row; times in ms."""
    with ExitStack() as stack:
        sides = {
            protocol: started(strategy, protocol, workers, width, stack) for protocol in PROTOCOLS
        }
        for side in sides.values():
            side.turn(1, steps, batch)
            side.milliseconds.clear()  # made functions and, over rdma, agreed on places
        for _ in range(turns):
            for side in sides.values():
                side.turn(epochs, steps, batch)
    losses = {protocol: side.losses for protocol, side in sides.items()}
    return {
        "strategy": strategy,
        "ms": {protocol: summarize(side.milliseconds) for protocol, side in sides.items()},
        "mib_per_step": {p: n / sides["rdma"].steps / MIB for p, n in sides["rdma"].sent.items()},
        "pss_mib": {protocol: side.mib for protocol, side in sides.items()},
        "steps": sides["rdma"].steps,
        "equal": losses["grpc"] == losses["rdma"],
        "finite": all(math.isfinite(float.fromhex(x)) for both in losses.values() for x in both),
        "losses": losses,
    }


def show(rows: list[dict[str, Any]], workers: int, samples: int, batch: int) -> Table:
    """Return a table of the rows; times are in ms."""
    title = f"step of Keras fit with {workers} workers and batches of {batch}, ms, "
    title += f"median of {samples} epochs"
    table = Table(title=title)
    headings = ("gRPC", "rdma", "gRPC/rdma", "MiB per step over rdma, by mode")
    for heading in ("", *headings, "PSS, MiB\ngRPC", "\nrdma", "steps", "equal?"):
        table.add_column(heading, justify="left" if not heading else "right")
    for row in rows:
        grpc, rdma = row["ms"]["grpc"], row["ms"]["rdma"]
        modes = ", ".join(f"{mode} {mib:.1f}" for mode, mib in row["mib_per_step"].items() if mib)
        equal = ("yes" if row["equal"] else "NO") if row["strategy"] == "mirrored" else "-"
        times = (f"{grpc.median:.1f}", f"{rdma.median:.1f}", ratio(grpc, rdma))
        memory = (f"{row['pss_mib'][protocol]:.0f}" for protocol in PROTOCOLS)
        table.add_row(row["strategy"], *times, modes, *memory, str(row["steps"]), equal)
    return table


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
    json_file: JsonFile = None,
) -> None:
    """Print the time of a step of `fit` with each strategy over both protocols."""
    chosen = choose(strategies, STRATEGIES, "strategy", "--strategies")
    if turns * epochs < 6:
        raise typer.BadParameter(
            f"{turns} turns times {epochs} epochs are less than 6", param_hint="--turns"
        )
    console = Console()
    console.width = max(console.width, 120)
    console.print(describe(), highlight=False)
    rows = [measure(name, workers, width, turns, epochs, steps, batch) for name in chosen]
    console.print(show(rows, workers, turns * epochs, batch))
    times = [{name: value.as_dict() for name, value in row["ms"].items()} for row in rows]
    plain = [row | {"ms": each} for row, each in zip(rows, times, strict=True)]
    save(json_file, {"workers": workers, "width": width, "batch": batch, "rows": plain})
    unequal = [row for row in rows if row["strategy"] == "mirrored" and not row["equal"]]
    if unequal or not all(row["finite"] for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    run_command(main)
