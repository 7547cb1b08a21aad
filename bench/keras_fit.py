"""Measures a step of Keras `fit` with TensorFlow 2's strategies, over gRPC and over rdma.

The model is an MLP with 32 MiB of weights. With batches of 4 a step is mostly communication, with
batches of 512 mostly arithmetic. Mirrored: TensorFlow's collectives sum the gradients of two
workers, and the losses must be equal bit for bit. Parameter server: two workers use one server and
do not wait for each other, so the losses depend on their order. Both protocols take turns.

usage: python -m bench.keras_fit [--turns 4] [--epochs 3] [--steps 4] [--batch 4] [--json FILE]
"""

import json
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from .support.cluster import Cluster, Task
from .support.exit import run_command
from .support.machine import describe
from .support.options import JsonFile, choose, save
from .support.timing import ratio, summarize

PROTOCOLS = ("grpc", "rdma")
FITTING = Path(__file__).parent / "support" / "fitting.py"
TURN_SECONDS = 120
MIB = 2**20
# Of each strategy the jobs, and the job whose tasks call `fit`.
STRATEGIES = {
    "mirrored": ({"worker": 2}, "worker"),
    "parameter server": ({"ps": 1, "worker": 2, "chief": 1}, "chief"),
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

    def turn(self, epochs: int, steps: int, batch: int) -> None:
        """Fit for so many epochs on all tasks, after one that is not counted."""
        for task in self.fitting:
            task.tell(f"{epochs} {steps} {batch}")
        answers = [task.read(TURN_SECONDS) for task in self.fitting]
        self.milliseconds += answers[0]["ms"]
        self.losses += answers[0]["losses"]
        self.steps += (epochs + 1) * steps
        served = [task.stats() for task in self.cluster.tasks.values()]
        self.sent = {}
        for stats in [*served, *(answer["stats"] for answer in answers)]:
            for mode, count in stats["sent"].items():
                self.sent[mode] = self.sent.get(mode, 0) + count["bytes"]


def started(strategy: str, protocol: str, stack: ExitStack) -> Side:
    """Start the cluster of a strategy; `stack` ends it."""
    jobs, fits = STRATEGIES[strategy]
    apart = [(fits, index) for index in range(jobs[fits])]
    cluster = stack.enter_context(Cluster(jobs, protocol, without=apart))
    tasks = []
    for job, index in apart:
        config = {"cluster": cluster.spec, "task": {"type": job, "index": index}}
        environment = {"TF_CONFIG": json.dumps(config | {"rpc_layer": protocol})}
        tasks.append(Task(job, index, protocol, cluster.spec, environment, program=FITTING))
        stack.callback(tasks[-1].end)
    for task in tasks:
        assert task.wait_ready() == {"ready": True}
    return Side(cluster, tasks)


def measure(strategy: str, turns: int, epochs: int, steps: int, batch: int) -> dict[str, Any]:
    """One strategy's row; times in ms."""
    with ExitStack() as stack:
        sides = {protocol: started(strategy, protocol, stack) for protocol in PROTOCOLS}
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
        "equal": losses["grpc"] == losses["rdma"],
        "finite": all(math.isfinite(float.fromhex(x)) for both in losses.values() for x in both),
        "losses": losses,
    }


def show(rows: list[dict[str, Any]], samples: int, batch: int) -> Table:
    """Return a table of the rows; times are in ms."""
    title = f"step of Keras fit with 2 workers and batches of {batch}, ms, median of {samples}"
    table = Table(title=title)
    for heading in ("", "gRPC", "rdma", "gRPC/rdma", "MiB per step over rdma, by mode", "equal?"):
        table.add_column(heading, justify="left" if not heading else "right")
    for row in rows:
        grpc, rdma = row["ms"]["grpc"], row["ms"]["rdma"]
        modes = ", ".join(f"{mode} {mib:.1f}" for mode, mib in row["mib_per_step"].items() if mib)
        equal = ("yes" if row["equal"] else "NO") if row["strategy"] == "mirrored" else "-"
        times = (f"{grpc.median:.1f}", f"{rdma.median:.1f}", ratio(grpc, rdma))
        table.add_row(row["strategy"], *times, modes, equal)
    return table


def main(
    strategies: Annotated[
        str, typer.Option(help="Measure these strategies, separated by commas.")
    ] = ",".join(STRATEGIES),
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
    console.print(describe())
    rows = [measure(name, turns, epochs, steps, batch) for name in chosen]
    console.print(show(rows, turns * epochs, batch))
    times = [{name: value.as_dict() for name, value in row["ms"].items()} for row in rows]
    plain = [row | {"ms": each} for row, each in zip(rows, times, strict=True)]
    save(json_file, {"batch": batch, "rows": plain})
    unequal = [row for row in rows if row["strategy"] == "mirrored" and not row["equal"]]
    if unequal or not all(row["finite"] for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    run_command(main)
