"""Measures the time that an edge between two tasks adds to a computation.

A chain of `x + 1` and `x * 0.5` alternates between two tasks. The first one runs its session, as a
training script does that starts a server and runs steps on it. The time of the same chain in one
process, with the same session options, is subtracted from its step, and the rest is divided by the
number of edges. Nothing else is subtracted. So an edge's time includes its share of the fixed cost
of a step over two tasks, which is also measured alone: a step with one edge of 4 bytes, minus the
same step in one process. It also includes what the edge costs the computation: memory that is not
in the cache, and operations in place that are only possible in one process.

Two tests are of a whole hop, arithmetic included. "local" is the chain in one process. The floor is
two processes that compute the same in turns, and do nothing else (`bench.support.floor`), with one
thread per hop where TensorFlow uses two: on memory that they share, or between two hosts on what
they send each other over one TCP connection. A hop over an edge takes the time of the edge and of
one process together.

gRPC, rdma, rdma without static edges, one process and the floor take turns in one run, in another
order in each round (`bench.support.turns`). In each turn a step warms up, and the next ones are
measured: ten if they move up to 6.4 MB, two if they move more than 21. The results of all chains
are compared with one process, bit for bit. `bench.references` explains the second table.

usage: python -m bench.edges [--sizes 4,4096] [--repeat 15] [--veth cubic] [--json]
"""

import functools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Annotated

import typer

from . import references
from .chains import COMPUTED, Chain, fitting, on_each
from .options import between, performed
from .remote_session import SESSION_TASK
from .report import Result, Row, times_of
from .support.cluster import Cluster
from .support.counters import sent_since
from .support.exit import run_command
from .support.floor import Floor, floor_between
from .support.options import Repeat, Sizes
from .support.sizes import parse_sizes, size_name
from .support.turns import in_turns
from .where import JOBS, Measure, Where, clusters

SIZES = "4,65536,1048576,4194304,16777216"
PROTOCOLS = ("grpc", "rdma", "dynamic")
HOPS = (2, 12, 48)  # of a chain; the most that fit
# Of a turn: short steps need more of them to rise above the noise.
MEASURED_STEPS = (2, 10)
MEASURED_BYTES = 64_000_000
ONE_DEVICE = ("/cpu:0", "/cpu:0")
NOTES = (
    "edge: what an edge adds to a chain of x + 1 and x * 0.5, with its share of step_cost.",
    "hop: a whole hop of that chain; local: in one process; floor: two processes that share "
    "memory, or between hosts one TCP connection, and do nothing else, on one thread each.",
    "step_cost: what a step with one edge of 4 B adds to that step in one process.",
    "< and > are 95 % bounds, where noise hides more.",
)
DYNAMIC = "dynamic: rdma with RDMA_TRANSPORT_STATIC=off."
Steps = Mapping[str, Chain | Floor]
Track = Callable[..., Iterable[int]]


def measured_steps(size: int, hops: int) -> int:
    """How many steps of a chain a turn measures."""
    least, most = MEASURED_STEPS
    return max(least, min(most, MEASURED_BYTES // (size * hops)))


def _microseconds(steps: Steps, size: int, hops: int, repeat: int) -> dict[str, list[float]]:
    """The mean step of each turn, which carries `size` bytes over each of its edges."""
    lengths = [hops] * (1 + measured_steps(size, hops))

    def mean(name: str) -> float:
        _, *measured = steps[name].seconds(lengths)
        return 1e6 * statistics.fmean(measured)

    return in_turns({name: functools.partial(mean, name) for name in steps}, repeat)


def _added(times: Mapping[str, list[float]], name: str, hops: int) -> list[float]:
    """What an edge adds to one process, for the step of each turn."""
    return [(step - local) / hops for step, local in zip(times[name], times["local"], strict=True)]


def computed(
    made: Mapping[str, Cluster], sizes: list[int], repeat: int, track: Track, hops: int = 0
) -> Result:
    """Rows of the running clusters: per edge, and of a whole hop in one process and of the floor.

    Edges are between the first tasks of JOBS. `hops` is the length of the chain, 0 for the longest
    of HOPS that fits.
    """
    options = {"repeat": repeat, "hops": hops}
    result = Result("edges", "time per edge, one way, inside a step", options, "p50")
    layout = next(iter(made.values())).layout
    places = layout(JOBS[0], 0), layout(JOBS[1], 0)
    for size in track(sizes, "measuring edges"):
        length = hops or fitting(HOPS, size)[-1]
        with ExitStack() as stack:
            chains = on_each(stack, made, size, [length], COMPUTED, ONE_DEVICE)
            steps: Steps = {**chains, "floor": floor_between(stack, size, *places)}
            before = {name: cluster.counted() for name, cluster in made.items()}
            wrong = {name: each.wrong(length) for name, each in steps.items()}
            times = _microseconds(steps, size, length, repeat)
            named = size_name(size), size
            for name, cluster in made.items():
                samples, sent = _added(times, name, length), cluster.counted()
                row = Row("edge", *named, name, repeat, times_of(samples), wrong=wrong[name])
                result.rows.append(replace(row, sent=sent_since(before[name], sent)))
            for name in ("local", "floor"):
                spent = times_of([time / length for time in times[name]])
                result.rows.append(Row("hop", *named, name, repeat, spent, wrong=wrong[name]))
    with ExitStack() as stack:
        chains = on_each(stack, made, 4, [1], COMPUTED, ONE_DEVICE)
        times = _microseconds(chains, 4, 1, repeat)
    for name in chains:
        test, cost = "step_cost", _added(times, name, 1)
        if name == "local":
            test, cost = "step", times[name]
        result.rows.append(Row(test, size_name(4), 4, name, repeat, times_of(cost)))
    result.notes += [*NOTES, DYNAMIC] if "dynamic" in made else NOTES
    result.compare(list(made))
    result.add_traffic(made)
    return result


def edges(
    where: Where,
    sizes: list[int],
    repeat: int = 15,
    hops: int = 0,
    with_references: bool = True,
) -> Iterator[Result]:
    """Time that an edge between two tasks adds to a computation, and to passing a reference."""
    jobs = dict.fromkeys(JOBS, 1)
    with clusters(where, jobs, programs={JOBS[0]: SESSION_TASK}) as made:
        count = 1 + with_references
        yield computed(made, sizes, repeat, where.bar.section(0, count).track, hops)
        if with_references:
            yield references.passed(made, sizes, repeat, where.bar.section(1, count).track, hops)


@performed(functools.partial(between, protocols=PROTOCOLS))
def main(
    sizes: Sizes = SIZES,
    repeat: Repeat = 15,
    hops: Annotated[
        int,
        typer.Option(
            help="Set the edges of the chains; 0: 48 computed edges, references by speed.", min=0
        ),
    ] = 0,
    with_references: Annotated[
        bool, typer.Option("--references/--no-references", help="Measure references too.")
    ] = True,
) -> Measure:
    """Print the time that an edge between two tasks adds, over gRPC and over rdma.

    The first table is of tensors that are computed, the second of references that are passed.
    """
    if hops and (hops % 2 or hops < 4):
        raise typer.BadParameter(
            f"{hops} is not 0 or an even number of at least 4", param_hint="--hops"
        )
    wanted = parse_sizes(sizes)
    return lambda where: edges(where, wanted, repeat, hops, with_references)


if __name__ == "__main__":
    run_command(main)
