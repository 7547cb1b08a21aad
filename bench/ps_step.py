"""Measures a training step with one parameter server and two workers, over gRPC and over rdma.

The parameter server holds an MLP with 32 MiB of weights. Each worker reads all weights and returns
all gradients, so about 128 MiB cross between processes per step. Both protocols take turns.

usage: python -m bench.ps_step [--repeat 20] [--json FILE]
"""

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from .support.cluster import Cluster
from .support.exit import run_command
from .support.machine import describe
from .support.options import JsonFile, save
from .support.timing import Summary, ratio, summarize

WIDTH = 2048
LAYERS = 2  # each of WIDTH x WIDTH float32, 16 MiB
BATCH = 4  # small, so that communication and not arithmetic is measured
MIB = 2**20


@dataclass
class Graph:
    graph: Any
    initializer: Any
    train: Any
    loss: Any


def build() -> Graph:
    """Two towers, gradients summed in a fixed order on the parameter server."""
    import tensorflow as tf

    v1 = tf.compat.v1
    graph = tf.Graph()
    with graph.as_default():
        with tf.device("/job:ps/task:0"):
            start = v1.random_normal_initializer(stddev=WIDTH**-0.5, seed=1)
            variables = [
                v1.get_variable(f"w{i}", [WIDTH, WIDTH], initializer=start, use_resource=True)
                for i in range(LAYERS)
            ]
        gradients, losses = [], []
        for worker in range(2):
            with tf.device(f"/job:worker/task:{worker}"):
                x = tf.random.stateless_normal([BATCH, WIDTH], seed=[worker, 7])
                weights = [tf.identity(variable.read_value()) for variable in variables]
                for weight in weights:
                    x = tf.tanh(tf.matmul(x, weight))
                losses.append(tf.reduce_mean(x * x))
                gradients.append(tf.gradients(losses[-1], weights))
        with tf.device("/job:ps/task:0"):
            updates = [
                v1.raw_ops.ResourceApplyGradientDescent(
                    var=variable.handle, alpha=0.1, delta=first + second
                )
                for variable, first, second in zip(variables, *gradients, strict=True)
            ]
            loss = losses[0] + losses[1]
        return Graph(graph, v1.global_variables_initializer(), tf.group(*updates), loss)


def sent_bytes(cluster: Cluster) -> dict[str, int] | None:
    """Bytes that all tasks sent so far, by mode; None where the plugin counts nothing."""
    total: dict[str, int] = {"copied": 0}
    counted = False
    for task in cluster.tasks.values():
        stats = task.stats()
        if stats is None or not stats["loaded"]:
            continue
        counted = True
        for mode, count in stats["sent"].items():
            total[mode] = total.get(mode, 0) + count["bytes"]
        total["copied"] += stats["copied_bytes"]
    return total if counted else None


def measure(repeat: int) -> tuple[dict[str, Summary], dict[str, dict[str, float] | None], bool]:
    """Milliseconds of a step, MiB per step by mode, and whether all losses were equal in bits."""
    from .support.session import config, opened

    with ExitStack() as stack:
        clusters, sessions, graphs = {}, {}, {}
        for protocol in ("grpc", "rdma"):
            clusters[protocol] = Cluster({"ps": 1, "worker": 2}, protocol)
            stack.callback(clusters[protocol].end)
        for protocol, cluster in clusters.items():
            made = graphs[protocol] = build()
            target = cluster.target("worker")
            session = stack.enter_context(opened(target, made.graph, config()))
            session.run(made.initializer)
            sessions[protocol] = session
        seconds: dict[str, list[float]] = {protocol: [] for protocol in clusters}
        losses: dict[str, list[str]] = {protocol: [] for protocol in clusters}

        def step(protocol: str) -> float:
            made = graphs[protocol]
            start = time.perf_counter()
            loss, _ = sessions[protocol].run([made.loss, made.train])
            taken = time.perf_counter() - start
            losses[protocol].append(float(loss).hex())
            return taken

        for protocol in clusters:
            for _ in range(3):
                step(protocol)
        before = {protocol: sent_bytes(cluster) for protocol, cluster in clusters.items()}
        for _ in track(range(repeat), "measuring"):
            for protocol in clusters:
                step(protocol)  # the first after the other protocol's turn bears its leftovers
                seconds[protocol].append(1e3 * step(protocol))
        per_step: dict[str, dict[str, float] | None] = {}
        for protocol, cluster in clusters.items():
            then, now = before[protocol], sent_bytes(cluster)
            per_step[protocol] = (
                None
                if then is None or now is None
                else {mode: (now[mode] - then[mode]) / (2 * repeat) / MIB for mode in now}
            )
    summaries = {protocol: summarize(values) for protocol, values in seconds.items()}
    return summaries, per_step, losses["grpc"] == losses["rdma"]


def main(
    repeat: Annotated[int, typer.Option(help="Measure each protocol this many times.", min=6)] = 20,
    json_file: JsonFile = None,
) -> None:
    """Print the time of a step over both protocols, and the bytes by mode."""
    import tensorflow as tf

    tf.compat.v1.disable_eager_execution()
    steps, traffic, equal = measure(repeat)
    console = Console()
    console.print(describe())
    table = Table(title=f"step of 1 parameter server and 2 workers, ms, median of {repeat}")
    for heading in ("", "median", "min", "p90", "MiB sent per step, by mode"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, value in steps.items():
        went = traffic[name]
        modes = (
            "not counted"
            if went is None
            else ", ".join(f"{mode} {mib:.1f}" for mode, mib in went.items() if mib) or "none"
        )
        times = (f"{number:.1f}" for number in (value.median, value.minimum, value.p90))
        table.add_row(name, *times, modes)
    table.add_section()
    table.add_row("gRPC/rdma", ratio(steps["grpc"], steps["rdma"]))
    console.print(table)
    console.print(f"losses: {'equal bit for bit' if equal else 'NOT equal'}")
    times_by_name = {name: value.as_dict() for name, value in steps.items()}
    save(json_file, {"ms": times_by_name, "mib": traffic, "equal": equal})
    if not equal:
        raise typer.Exit(1)


if __name__ == "__main__":
    run_command(main)
