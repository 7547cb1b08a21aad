"""Time per edge between two tasks: a tensor goes back and forth inside one step.

The time of a step with few hops is taken from that of a step with many, so TensorFlow's own cost of
a step cancels out. Both protocols and an edge inside one process take turns in one run.

usage: python -m bench.edges [--sizes 4,4096] [--op identity|negative] [--json FILE]
"""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.support.cluster import Cluster
from bench.support.machine import describe

SIZES = "4,64,4096,65536,1048576,4194304,16777216"
SHORT_HOPS = 2


class Chain:
    """Sessions that run a chain of `hops` edges, and one of SHORT_HOPS, for each size."""

    def __init__(self, target: str, devices: list[str], sizes: list[int], hops: int, op: str):
        import tensorflow as tf

        from bench.support.session import config, v1

        step: Callable[[Any], Any] = {"identity": tf.identity, "negative": tf.negative}[op]
        self.hops = hops
        graph = tf.Graph()
        with graph.as_default():
            self.runs = {}
            for size in sizes:
                with tf.device(devices[0]):
                    source = v1.get_variable(
                        f"source{size}", [max(size // 4, 1)], use_resource=True
                    ).read_value()
                self.runs[size] = [
                    self._build(tf, step, source, devices, n) for n in (SHORT_HOPS, hops)
                ]
            initializer = v1.global_variables_initializer()
        local = len(set(devices)) > 1 and not devices[0].startswith("/job:a")
        self.session = v1.Session(target, graph=graph, config=config(2 if local else 1))
        self.session.run(initializer)
        self._check_edges(v1, sizes[0])

    @staticmethod
    def _build(tf: Any, step: Any, source: Any, devices: list[str], hops: int) -> Any:
        value = source
        for hop in range(hops):
            with tf.device(devices[(hop + 1) % 2]):
                value = step(value)
        with tf.device(devices[0]):
            return tf.reduce_sum(tf.abs(value[:1])), tf.reduce_sum(tf.abs(source[:1]))

    def _check_edges(self, v1: Any, size: int) -> None:
        """See in the partitions that were run that every hop really is an edge."""
        metadata = v1.RunMetadata()
        options = v1.RunOptions(output_partition_graphs=True)
        self.session.run(self.runs[size][1], options=options, run_metadata=metadata)
        sends = sum(
            node.op in ("_Send", "_HostSend")
            for part in metadata.partition_graphs
            for node in part.node
        )
        if sends < self.hops:
            raise RuntimeError(f"TensorFlow kept {sends} of {self.hops} edges")

    def check(self, size: int) -> int:
        """How many values came back wrong; also warms up."""
        wrong = 0
        for _ in range(3):
            for run in self.runs[size]:
                came, went = self.session.run(run)
                wrong += int(came != went)
        return wrong

    def edge_seconds(self, size: int) -> float:
        """One measurement of one edge."""
        seconds = []
        for run in self.runs[size]:
            start = time.perf_counter()
            self.session.run(run)
            seconds.append(time.perf_counter() - start)
        return (seconds[1] - seconds[0]) / (self.hops - SHORT_HOPS)


def size_name(size: int) -> str:
    for unit, factor in (("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size // factor} {unit}"
    return f"{size} B"


def measure(sizes: list[int], repeat: int, hops: int, op: str) -> list[dict[str, Any]]:
    """Rows of medians in microseconds; `wrong` counts wrong values."""
    rows = []
    clusters = {protocol: Cluster({"a": 1, "b": 1}, protocol) for protocol in ("grpc", "rdma")}
    try:
        tasks = ["/job:a/task:0", "/job:b/task:0"]
        chains = {p: Chain(c.target("a"), tasks, sizes, hops, op) for p, c in clusters.items()}
        chains["local"] = Chain("", ["/cpu:0", "/cpu:1"], sizes, hops, op)
        for size in track(sizes, "measuring"):
            wrong = sum(chain.check(size) for chain in chains.values())
            samples: dict[str, list[float]] = {name: [] for name in chains}
            for _ in range(repeat):
                for name, chain in chains.items():
                    samples[name].append(1e6 * chain.edge_seconds(size))
            row: dict[str, Any] = {"bytes": size, "wrong": wrong}
            for name, values in samples.items():
                row[name] = statistics.median(values)
                row[f"{name}_p90"] = statistics.quantiles(values, n=10)[-1]
            rows.append(row)
        sent = clusters["rdma"]["a", 0].stats()["sent"]
        rows[0]["rdma_tensors_by_path"] = {path: count["tensors"] for path, count in sent.items()}
        # Before their tasks end: TensorFlow's close() waits for ever for a task that is gone.
        for chain in chains.values():
            chain.session.close()
    finally:
        for cluster in clusters.values():
            cluster.end()
    return rows


def main(
    sizes: Annotated[str, typer.Option(help="bytes, with commas")] = SIZES,
    repeat: Annotated[int, typer.Option(help="measurements of each", min=2)] = 15,
    hops: Annotated[int, typer.Option(help="edges in the long chain", min=4)] = 102,
    op: Annotated[str, typer.Option(help="what each hop does: identity or negative")] = "identity",
    json_file: Annotated[Path | None, typer.Option("--json", help="write the rows here")] = None,
) -> None:
    """Print the time per edge of gRPC, of rdma, and of an edge inside one process."""
    if op not in ("identity", "negative"):
        raise typer.BadParameter("--op takes identity or negative")
    import tensorflow as tf

    tf.compat.v1.disable_eager_execution()
    rows = measure([int(size) for size in sizes.split(",")], repeat, hops, op)
    console = Console()
    console.print(describe())
    console.print(f"rdma: tensors of task a by path: {rows[0]['rdma_tensors_by_path']}")
    table = Table(title=f"time per edge, us, median of {repeat} ({op})")
    for heading in ("size", "gRPC", "p90", "rdma", "p90", "gRPC/rdma", "one process", "#wrong"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            size_name(row["bytes"]),
            *(f"{row[key]:.1f}" for key in ("grpc", "grpc_p90", "rdma", "rdma_p90")),
            f"{row['grpc'] / row['rdma']:.1f}x",
            f"{row['local']:.1f}",
            str(row["wrong"]),
        )
    console.print(table)
    if json_file is not None:
        json_file.write_text(json.dumps({"machine": describe(), "op": op, "rows": rows}, indent=2))
    if any(row["wrong"] for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
