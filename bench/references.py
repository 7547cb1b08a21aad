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

import functools
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace

from .chains import IDENTITY, Chain, fitting, on_each
from .report import Result, Row, times_of
from .support.cluster import Cluster
from .support.counters import sent_since
from .support.sizes import size_name
from .support.turns import in_turns

SHORT_HOPS = 2
LONG_HOPS: tuple[int, ...] = (22, 102, 402, 1002)
TWO_DEVICES = ("/cpu:0", "/cpu:1")
STEP_SECONDS = 0.25  # the longest chain whose step takes at most this long


def choose_length(chain: Chain, lengths: tuple[int, ...]) -> tuple[int, int]:
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


def measure_chain(chain: Chain, hops: int) -> float:
    """Return the microseconds of one edge."""
    warm_up = [hops, SHORT_HOPS]
    _, _, short, long, again, last = chain.seconds([*warm_up, SHORT_HOPS, hops, hops, SHORT_HOPS])
    return 1e6 * (long + again - short - last) / 2 / (hops - SHORT_HOPS)


def passed(
    made: Mapping[str, Cluster],
    sizes: list[int],
    repeat: int,
    track: Callable[..., Iterable[int]],
    hops: int = 0,
) -> Result:
    """Rows of the running clusters, and of "local": between two devices of this process.

    `hops` is the length of the long chain, 0 to choose it by speed.
    """
    options = {"repeat": repeat, "hops": hops}
    result = Result("references", "passing a reference, nothing is read, per edge", options, "p50")
    for size in track(sizes, "measuring references"):
        lengths = fitting((hops,) if hops else LONG_HOPS, size)
        with ExitStack() as stack:
            chains = on_each(stack, made, size, (SHORT_HOPS, *lengths), IDENTITY, TWO_DEVICES)
            before = {name: cluster.counted() for name, cluster in made.items()}
            chosen = {name: choose_length(chain, lengths) for name, chain in chains.items()}
            times = in_turns(
                {
                    name: functools.partial(measure_chain, chain, chosen[name][0])
                    for name, chain in chains.items()
                },
                repeat,
            )
            for name, samples in times.items():
                long, wrong = chosen[name]
                sent = sent_since(before[name], made[name].counted()) if name in made else None
                row = Row("reference", size_name(size), size, name, repeat, times_of(samples))
                result.rows.append(replace(row, wrong=wrong, sent=sent, more={"hops": long}))
    result.notes.append("local: between two CPU devices of one process.")
    result.compare(list(made))
    result.add_traffic(made)
    return result
