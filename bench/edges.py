"""Measures the time per edge between two tasks: a tensor goes back and forth inside one step.

The time of a step with few hops is subtracted from that of a step with many hops, so TensorFlow's
cost of a step cancels out. gRPC, rdma, rdma without static edges, and an edge inside one process
take turns in one run. At the start of each turn a long and a short step warm up. The measured steps
run in the order short, long, long, short. Otherwise the first step would include the cold start,
and the difference would be too small. Fast edges use longer chains, so that the noise of a step is
small in comparison.

usage: python -m bench.edges [--sizes 4,4096] [--op identity|negative] [--json FILE]
"""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from .support.cluster import Cluster
from .support.counters import sent_since
from .support.exit import run_command
from .support.machine import describe
from .support.options import JsonFile, Repeat, Sizes, save
from .support.sizes import parse_sizes, size_name
from .support.timing import Summary, plain, ratio, summarize

SIZES = "4,64,4096,65536,1048576,4194304,16777216"
Way = tuple[str, dict[str, str]]  # a protocol, and settings
CLUSTERS: dict[str, Way] = {
    "grpc": ("grpc", {}),
    "rdma": ("rdma", {}),
    "dynamic": ("rdma", {"RDMA_TRANSPORT_STATIC": "off"}),
}
SHORT_HOPS = 2
LONG_HOPS = (22, 102, 402, 1002)
STEP_SECONDS = 0.25  # the longest chain whose step takes at most this long
# And whose tensors take at most this much: where they are copied, each edge has slots of its own.
CHAIN_BYTES = 2**31


class Chain:
    """Steps of SHORT_HOPS and of each of `lengths` edges that carry `size` bytes."""

    def __init__(
        self,
        stack: ExitStack,
        target: str,
        devices: list[str],
        size: int,
        lengths: tuple[int, ...],
        op: str,
    ):
        import tensorflow as tf

        from .support.session import config, opened, v1

        step: Callable[[Any], Any] = {"identity": tf.identity, "negative": tf.negative}[op]
        self.lengths = lengths
        graph = tf.Graph()
        with graph.as_default():
            with tf.device(devices[0]):
                source = v1.get_variable(
                    "source", [max(size // 4, 1)], use_resource=True
                ).read_value()
            self.runs = {
                n: self._build(tf, step, source, devices, n) for n in (SHORT_HOPS, *lengths)
            }
            initializer = v1.global_variables_initializer()
        options = config(1 if target else 2)
        self.session = stack.enter_context(opened(target, graph, options))
        self.session.run(initializer)
        self._check_edges(v1)

    @staticmethod
    def _build(tf: Any, step: Any, source: Any, devices: list[str], hops: int) -> Any:
        value = source
        for hop in range(hops):
            with tf.device(devices[(hop + 1) % 2]):
                value = step(value)
        with tf.device(devices[0]):
            # What is timed touches one element; what is checked, outside of that, touches all.
            return value[:1].op, tf.reduce_all(tf.equal(value, source))

    def _check_edges(self, v1: Any) -> None:
        """See in the partitions that were run that every hop really is an edge."""
        metadata = v1.RunMetadata()
        options = v1.RunOptions(output_partition_graphs=True)
        hops = self.lengths[0]
        self.session.run(self.runs[hops][0], options=options, run_metadata=metadata)
        sends = sum(
            node.op in ("_Send", "_HostSend")
            for part in metadata.partition_graphs
            for node in part.node
        )
        if sends < hops:
            raise RuntimeError(f"TensorFlow kept {sends} of {hops} edges")

    def step_seconds(self, hops: int) -> float:
        start = time.perf_counter()
        self.session.run(self.runs[hops][0])
        return time.perf_counter() - start

    def choose_length(self) -> tuple[int, int]:
        """The hops to measure with, and how many values came back wrong; warms up."""
        wrong, chosen = 0, self.lengths[0]
        for hops in self.lengths:
            for _ in range(3):
                wrong += int(not self.session.run(self.runs[hops][1]))
            step = min(self.step_seconds(hops) for _ in range(3))
            if step > STEP_SECONDS and hops != self.lengths[0]:
                break
            chosen = hops
            following = [n for n in self.lengths if n > hops]
            if following and step * following[0] / hops > STEP_SECONDS:
                break
        return chosen, wrong

    def measure(self, hops: int) -> tuple[float, float]:
        """Seconds of one edge, and of a whole step of SHORT_HOPS."""
        for warm_up in (hops, SHORT_HOPS):
            self.step_seconds(warm_up)
        short, long, again, last = (
            self.step_seconds(n) for n in (SHORT_HOPS, hops, hops, SHORT_HOPS)
        )
        return (long + again - short - last) / 2 / (hops - SHORT_HOPS), (short + last) / 2


def measure(
    sizes: list[int], repeat: int, hops: int, op: str, ways: Mapping[str, Way] = CLUSTERS
) -> tuple[list[dict], dict]:
    """Rows in microseconds, and task a's tensors by mode; `wrong` counts wrong values."""
    with ExitStack() as stack:
        clusters = {}
        for name, (protocol, environment) in ways.items():
            clusters[name] = Cluster({"a": 1, "b": 1}, protocol, environment)
            stack.callback(clusters[name].end)
        rows = measure_on(clusters, sizes, repeat, hops, op)
        sent = clusters["rdma"]["a", 0].stats()["sent"]
    return rows, {mode: count["tensors"] for mode, count in sent.items()}


def measure_on(
    clusters: Mapping[str, Cluster],
    sizes: list[int],
    repeat: int,
    hops: int = 0,
    op: str = "identity",
    jobs: tuple[str, str] = ("a", "b"),
    track: Callable[..., Iterable[int]] = track,
) -> list[dict[str, Any]]:
    """Rows in microseconds for each of the running clusters, by its name, and for "local".

    Edges are between the first tasks of the two jobs. `wrong` counts wrong values, and `…_sent` is
    what all tasks of a cluster sent by mode for its row, None over gRPC.
    """
    lengths = (hops,) if hops else LONG_HOPS
    tasks = [f"/job:{job}/task:0" for job in jobs]
    rows = []
    for size in track(sizes, "measuring"):
        fitting = tuple(n for n in lengths if n * size <= CHAIN_BYTES) or lengths[:1]
        with ExitStack() as stack:
            chains = {
                name: Chain(stack, cluster.target(jobs[0]), tasks, size, fitting, op)
                for name, cluster in clusters.items()
            }
            chains["local"] = Chain(stack, "", ["/cpu:0", "/cpu:1"], size, fitting, op)
            before = {name: cluster.counted() for name, cluster in clusters.items()}
            chosen = {name: chain.choose_length() for name, chain in chains.items()}
            edges: dict[str, list[float]] = {name: [] for name in chains}
            steps: dict[str, list[float]] = {name: [] for name in chains}
            for _ in range(repeat):
                for name, chain in chains.items():
                    edge, step = chain.measure(chosen[name][0])
                    edges[name].append(1e6 * edge)
                    steps[name].append(1e6 * step)
            row: dict[str, Any] = {"bytes": size, "wrong": sum(w for _, w in chosen.values())}
            for name in chains:
                row[f"{name}_wrong"] = chosen[name][1]
                row[name] = summarize(edges[name])
                row[f"{name}_hops"] = chosen[name][0]
                row[f"{name}_short_step"] = statistics.median(steps[name])
            for name, cluster in clusters.items():
                row[f"{name}_sent"] = sent_since(before[name], cluster.counted())
            rows.append(row)
    return rows


def show(rows: list[dict], title: str) -> Table:
    table = Table(title=title)
    headings = ("size", "gRPC", "(min, p90)", "rdma", "(min, p90)", "gRPC/rdma", "dynamic", "local")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("gRPC step", "rdma step", "#wrong"):
        table.add_column(heading, justify="right", no_wrap=True)

    def cells(value: Summary) -> list[str]:
        middle = f"{value.median:.1f}" if value.resolved else f"< {max(value.high, 0):.0f}"
        return [middle, f"({value.minimum:.0f}, {value.p90:.0f})"]

    for row in rows:
        table.add_row(
            size_name(row["bytes"]),
            *cells(row["grpc"]),
            *cells(row["rdma"]),
            ratio(row["grpc"], row["rdma"]),
            cells(row["dynamic"])[0],
            cells(row["local"])[0],
            *(f"{row[f'{name}_short_step']:.0f}" for name in ("grpc", "rdma")),
            str(row["wrong"]),
        )
    return table


def main(
    sizes: Sizes = SIZES,
    repeat: Repeat = 15,
    hops: Annotated[
        int, typer.Option(help="Set the edges of the long chain; 0 chooses by speed.", min=0)
    ] = 0,
    op: Annotated[
        str, typer.Option(help="Run this operation in each hop: identity or negative.")
    ] = "identity",
    json_file: JsonFile = None,
) -> None:
    """Print the time per edge of gRPC, of rdma, and of an edge inside one process."""
    if op not in ("identity", "negative"):
        raise typer.BadParameter(f"'{op}' is not identity or negative", param_hint="--op")
    if hops and (hops % 2 or hops < 4):
        raise typer.BadParameter(
            f"{hops} is not 0 or an even number of at least 4", param_hint="--hops"
        )
    import tensorflow as tf

    tf.compat.v1.disable_eager_execution()
    rows, modes = measure(parse_sizes(sizes), repeat, hops, op)
    console = Console()
    console.width = max(console.width, 116)
    console.print(describe())
    console.print(f"rdma: tensors sent by task a, by mode: {modes}")
    console.print(show(rows, f"time per edge, us, median of {repeat} ({op})"))
    console.print(
        "dynamic: rdma with RDMA_TRANSPORT_STATIC=off. "
        "local: between two CPU devices of one process. "
        f"step: a whole step of {SHORT_HOPS} hops, us, including TensorFlow's own cost. "
        "< and >: below the noise; the value is a 95 % bound."
    )
    report = {"op": op, "repeat": repeat, "tensors_by_mode": modes, "rows": plain(rows)}
    save(json_file, report)
    if any(row["wrong"] for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    run_command(main)
