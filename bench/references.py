"""Measures the time per edge of chains that pass a reference: nothing is computed or read.

Each hop is an `identity`. Within a process and on shared memory it passes on a reference to the
tensor, whose bytes are not read, so this is the cost of the notification alone. `bench.edges`
measures edges of tensors that are computed.

The time of a step with few hops is subtracted from that of a step with many hops, so TensorFlow's
cost of a step cancels out. All ways take turns in one run. At the start of each turn a long and a
short step warm up. The measured steps run in the order short, long, long, short. Otherwise the
first step would include the cold start, and the difference would be too small. Fast edges use
longer chains, so that the noise of a step is small in comparison.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

from .chains import IDENTITY, Chain, RemoteChain, fitting, on_each
from .support.cluster import Cluster
from .support.counters import sent_since
from .support.timing import summarize
from .support.turns import rounds

SHORT_HOPS = 2
LONG_HOPS: tuple[int, ...] = (22, 102, 402, 1002)
TWO_DEVICES = ("/cpu:0", "/cpu:1")
STEP_SECONDS = 0.25  # the longest chain whose step takes at most this long


def choose_length(chain: Chain | RemoteChain, lengths: tuple[int, ...]) -> tuple[int, int]:
    """Warm up. Return the hops to measure with, and the number of wrong results."""
    wrong, chosen = 0, lengths[0]
    for hops in lengths:
        wrong += chain.wrong(hops)
        step = min(chain.seconds([hops] * 3))
        if step > STEP_SECONDS and hops != lengths[0]:
            break
        chosen = hops
        following = [n for n in lengths if n > hops]
        if following and step * following[0] / hops > STEP_SECONDS:
            break
    return chosen, wrong


def measure_chain(chain: Chain | RemoteChain, hops: int) -> tuple[float, float]:
    """Return the seconds of one edge, and of a step of SHORT_HOPS."""
    warm_up = [hops, SHORT_HOPS]
    _, _, short, long, again, last = chain.seconds([*warm_up, SHORT_HOPS, hops, hops, SHORT_HOPS])
    return (long + again - short - last) / 2 / (hops - SHORT_HOPS), (short + last) / 2


def measure_on(
    clusters: Mapping[str, Cluster],
    sizes: list[int],
    repeat: int,
    jobs: tuple[str, str],
    track: Callable[..., Iterable[int]],
    hops: int = 0,
) -> list[dict[str, Any]]:
    """Rows in microseconds for each of the running clusters, by its name, and for "local".

    Edges are between the first tasks of the two jobs; those of "local" are between two devices of
    this process. `hops` is the length of the long chain, 0 to choose it by speed. `wrong` counts
    wrong results, and `…_sent` is what all tasks of a cluster sent by mode for its row, None over
    gRPC.
    """
    rows = []
    for size in track(sizes, "measuring references"):
        lengths = fitting((hops,) if hops else LONG_HOPS, size)
        both = (SHORT_HOPS, *lengths)
        with ExitStack() as stack:
            chains = on_each(stack, clusters, jobs, size, both, IDENTITY, TWO_DEVICES)
            before = {name: cluster.counted() for name, cluster in clusters.items()}
            chosen = {name: choose_length(chain, lengths) for name, chain in chains.items()}
            edges: dict[str, list[float]] = {name: [] for name in chains}
            steps: dict[str, list[float]] = {name: [] for name in chains}
            for name in rounds(chains, repeat):
                edge, step = measure_chain(chains[name], chosen[name][0])
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
