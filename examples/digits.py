"""Trains on handwritten digits with one parameter server and two workers, over gRPC and over rdma.

Both runs use the same seed and the same synchronous steps, so the losses must be equal bit for bit.

usage: python -m examples.digits [STEPS]
"""

import statistics
import time
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.support.cluster import Cluster
from bench.support.exit import run_command, watched

MIB = 2**20


@dataclass
class Result:
    """The results of one protocol; times in seconds."""

    losses: list[float] = field(default_factory=list)
    accuracy: float = 0.0
    step_seconds: float = 0.0
    compute_seconds: float = 0.0
    sent: dict[str, int] = field(default_factory=dict)
    copied: int = 0

    @property
    def communication_seconds(self) -> float:
        return self.step_seconds - self.compute_seconds


def train(
    target: str, placement: Any, steps: int, advance: Any
) -> tuple[list[float], float, float]:
    """Return the losses, the median time of a step, and the accuracy on the test images."""
    import tensorflow as tf

    from bench.support.session import opened
    from examples import digits_model

    _, _, test_images, test_labels = digits_model.data()
    graph = tf.Graph()
    with graph.as_default():
        model = digits_model.build(placement)
    losses, seconds = [], []
    with opened(target, graph) as session:
        session.run(model.initializer)
        for feed in islice(digits_model.feeds(model), steps):
            start = time.perf_counter()
            loss, _ = session.run([model.loss, model.train], feed)
            seconds.append(time.perf_counter() - start)
            losses.append(float(loss))
            advance()
        guesses = session.run(model.predictions, {model.test_images: test_images})
    return losses, statistics.median(seconds), float(np.mean(guesses == test_labels))


def run(protocol: str, steps: int, progress: Progress) -> Result:
    from examples import digits_model

    task = progress.add_task(f"{protocol}: starting 3 tasks", total=steps + steps // 2)
    cluster = Cluster({"ps": 1, "worker": 2}, protocol)
    stop_watching = watched(cluster)
    try:
        progress.update(task, description=f"{protocol}: training")
        result = Result()
        target = cluster.target("worker")
        result.losses, result.step_seconds, result.accuracy = train(
            target, digits_model.SPREAD, steps, lambda: progress.advance(task)
        )
        for each in cluster.tasks.values():
            stats = each.stats()
            for mode, count in stats["sent"].items():
                result.sent[mode] = result.sent.get(mode, 0) + count["bytes"]
            result.copied += stats["copied_bytes"]
        progress.update(task, description=f"{protocol}: the same in one process")
        _, result.compute_seconds, _ = train(
            target, digits_model.TOGETHER, steps // 2, lambda: progress.advance(task)
        )
        progress.update(task, description=f"{protocol}: done")
        return result
    finally:
        stop_watching()
        cluster.end()


def report(results: dict[str, Result], console: Console) -> bool:
    """Print the table; return whether the losses are equal bit for bit."""
    table = Table(title="handwritten digits: 1 parameter server, 2 workers, synchronous")
    table.add_column("")
    for name in results:
        table.add_column(name, justify="right")

    def row(name: str, show: Any) -> None:
        table.add_row(name, *(show(result) for result in results.values()))

    row("accuracy", lambda r: f"{100 * r.accuracy:.1f} %")
    row("last loss", lambda r: f"{r.losses[-1]:.6f}")
    row("steps/s", lambda r: f"{1 / r.step_seconds:.1f}")
    row("time per step, ms", lambda r: f"{1e3 * r.step_seconds:.1f}")
    row(
        "  of it communication, ms *",
        lambda r: f"{1e3 * r.communication_seconds:.1f}"
        if r.communication_seconds > 0
        else "below noise",
    )
    for mode in ("static", "dynamic", "inline", "grpc"):
        row(
            f"sent in mode {mode}, MiB",
            lambda r, mode=mode: f"{r.sent[mode] / MIB:.1f}"
            if any(r.sent.values())
            else "not counted",
        )
    row(
        "copied by the transport, MiB",
        lambda r: f"{r.copied / MIB:.1f}" if any(r.sent.values()) else "not counted",
    )
    grpc, rdma = results["grpc"], results["rdma"]
    table.add_section()
    table.add_row("gRPC's step / rdma's", "", f"{grpc.step_seconds / rdma.step_seconds:.2f}x")
    console.print(table)
    console.print("* step time minus the time of the same step in one process (medians)")
    equal = grpc.losses == rdma.losses
    console.print(
        f"losses of all {len(grpc.losses)} steps: "
        + ("equal bit for bit" if equal else "[bold red]NOT equal[/]")
    )
    return equal


def main(
    steps: Annotated[int, typer.Argument(min=2, help="Train for this many steps.")] = 120,
) -> None:
    """Train on handwritten digits over gRPC and over rdma, and compare."""
    console = Console()
    try:
        import rdma_transport  # noqa: F401
    except ImportError:
        typer.echo("error: rdma_transport is not installed: run `make venv` first", err=True)
        raise typer.Exit(3) from None
    import tensorflow as tf

    tf.compat.v1.disable_eager_execution()
    try:
        with Progress(console=console) as progress:
            results = {protocol: run(protocol, steps, progress) for protocol in ("grpc", "rdma")}
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if not report(results, console):
        raise typer.Exit(1)


if __name__ == "__main__":
    run_command(main)
