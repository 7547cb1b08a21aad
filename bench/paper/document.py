"""docs/benchmarks.md, from what was measured; says nothing that the numbers do not."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from statistics import mean

from ..report import Result, Row, Times, ratio_of
from .pictures import SMOOTHED

Rows = Sequence[Row]

HEAD = """# Benchmarks: the paper's evaluation, run again

"RPC Considered Harmful: Fast Distributed Deep Learning on RDMA" (Xue et al., EuroSys 2019), with
gRPC and rdma in turns in one run. This page, its pictures and `benchmarks.json` are written by

```sh
make paper
```

on {machine}.

## What this machine can say, and what it cannot

Both protocols ran between processes of one host: gRPC through TCP on the loopback interface,
rdma through shared memory. So this compares the two *mechanisms*: what is asked for, serialized,
copied and agreed on for each tensor. It does not compare networks. There was no InfiniBand or
RoCE card, no GPU, and two processors for all tasks and all arithmetic, so

- a ratio says how much of a step was the cost of gRPC's way, not what a card would give;
- loopback flatters gRPC, which has no wire to wait for; shared memory flatters rdma in the same
  way, and large tensors most of all: nothing moves;
- with more workers than processors, adding workers adds waiting: no speed-up can be seen, only
  how the cost of moving tensors grows;
- arithmetic on processors hides communication that would stand out beside a GPU.

What verbs do between hosts beside perftest, as far as Soft-RoCE can tell, is in the README
(`make bench-verbs`)."""

MESSAGE_SIZES = """
## Message sizes

A chain of `x + 1` and `x * 0.5` alternates between two tasks: median time in µs that an edge adds
to the same chain in one process (`python -m bench.edges` explains how). Each of the two ideas of
the paper is switched off in turn: *zero copy* (`RDMA_TRANSPORT_ZERO_COPY=off`: tensors are copied
out of the place where they arrive) and *static placement* (`RDMA_TRANSPORT_STATIC=off`: each
transfer needs a descriptor). The last two columns are times of a whole hop with its arithmetic: in
one process, and by two processes that share memory and do nothing else, on one thread each (the
floor). "<": below what the noise lets see. ">": at least so much, where the 95 % interval of a
median is wide; "noisy": not even that.

{table}

![time per edge by size](images/paper_message_sizes.svg)
"""

VERBS_MESSAGE_SIZES = """
## Message sizes over verbs

The same chains over the verbs fabric, on the tests' libibverbs without a card, which moves the
bytes between two processes through sockets (`python -m bench.paper --only verbs_message_sizes`).
Its times are not those of a card: each message wakes a thread in each process. But they show
what a static edge saves over a descriptor, which is the round trip of a read. Tensors up to 4 KiB
travel in the notification, with and without static placement. The last two columns are the
quotients of the medians in the same run.

{table}

![time per edge by size, over verbs](images/paper_verbs_message_sizes.svg)
"""

SOFT_ROCE_MESSAGE_SIZES = """
## Message sizes between hosts

The same chains, of 16 edges, over the kernel's verbs, between two virtual machines with Soft-RoCE
(`python -m bench.paper --only soft_roce_message_sizes`). Both machines, their network and the
emulated cards share this machine's processors, so the quotients count, not the times.

{table}

![time per edge by size, over Soft-RoCE](images/paper_soft_roce_message_sizes.svg)
"""

PASSED_REFERENCES = """
## Passing a reference

A chain of `identity` between two tasks, median time of one edge in µs. On shared memory an edge
passes a reference, and nothing is read, so these times are those of a notification and say nothing
about tensors that are computed. "One process" is an edge between two devices of one process.

{table}

![time per passed reference by size](images/paper_passed_references.svg)
"""

MODELS = """
## Models

A synchronous training step of the paper's models, one parameter server and two workers, batch 2,
after 20 steps of warm-up. "One process": the same step of three devices of one process, which
send nothing; what rdma takes longer is what remains of communication. All losses are compared bit
for bit. Static: share of the bytes that went by edges placed before the step.

{table}

![time per step of each model](images/paper_models.svg)
"""

SCALING = """
## More workers

One parameter server, batch 2 for each worker, on two processors.

{table}

![time per step by workers](images/paper_scaling.svg)
"""

CONVERGENCE = """
## Convergence

A convolutional network with 8 MiB of weights learns scikit-learn's handwritten digits, with two
workers and a batch of 64 for each; equal seeds, equal batches; the protocols take turns of
{turn} steps. {outcome}

{table}

![loss against time](images/paper_convergence.svg)
"""

PAPER = """
## The paper's figures beside ours

The paper's abstract gives two figures, measured on a cluster with RDMA cards. Its per-model
figures were not at hand, so they are not quoted.

{table}
"""


def write(machine: str, results: Mapping[str, Result]) -> str:
    """Return the page for what `results` has; other sections are left out."""
    parts = [HEAD.format(machine=machine)]
    parts += [SECTIONS[name](results[name].rows) for name in SECTIONS if name in results]
    named = [results[name] for name in ("models", "scaling") if name in results]
    steps = [row for result in named for row in _by_name(result.rows)]
    if steps:
        best = max(steps, key=_gain)
        step = best["rdma"]
        ours = f"{_gain(best):.1f}x (a step of {step.name}, workers: {step.test})"
        lines = [
            ("most that a benchmark gained over gRPC", "25x", ours),
            (
                "most that one gained over an RPC that uses RDMA",
                "2.7x (169 % more)",
                "not measured: TensorFlow 2.21 has none",
            ),
        ]
        parts.append(PAPER.format(table=table(("", "paper", "here"), lines)))
    return "".join(parts)


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table of Markdown."""
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _by_name(rows: Rows) -> list[dict[str, Row]]:
    """The rows of each test and name by protocol; edges with hops of the same size."""
    found: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        if not row.test.startswith("step"):
            test = "edge" if row.test == "hop" else row.test
            found.setdefault((test, row.name), {})[row.protocol] = row
    return list(found.values())


def _times(row: Row) -> Times:
    assert row.times is not None
    return row.times


def _cell(row: Row) -> str:
    times = _times(row)
    return f"{times.p50:.1f}" if times.resolved else f"< {max(times.high or 0, 0):.0f}"


def _ratio(slow: Row, fast: Row, digits: int = 2) -> str:
    found = ratio_of(_times(slow), _times(fast))
    return "noisy" if found is None else "> " * found[1] + f"{found[0]:.{digits}f}x"


def _message_sizes(rows: Rows) -> str:
    heads, lines = _edge_cells(rows, {"local": "one process", "floor": "floor"})
    for line, row in zip(lines, _by_name(rows), strict=True):
        line.append(_ratio(row["grpc"], row["rdma"], 1))
    return MESSAGE_SIZES.format(table=table((*heads, "gRPC / rdma"), lines))


def _verbs_message_sizes(rows: Rows) -> str:
    return VERBS_MESSAGE_SIZES.format(table=_static_beside_dynamic(rows))


def _soft_roce_message_sizes(rows: Rows) -> str:
    return SOFT_ROCE_MESSAGE_SIZES.format(table=_static_beside_dynamic(rows))


def _static_beside_dynamic(rows: Rows) -> str:
    heads = ("tensor", "gRPC", "rdma", "static off", "one process", "gRPC / rdma")
    lines = (
        [
            row["rdma"].name,
            *(_cell(row[way]) for way in ("grpc", "rdma", "dynamic", "local")),
            *(_ratio(row[way], row["rdma"]) for way in ("grpc", "dynamic")),
        ]
        for row in _by_name(rows)
    )
    return table((*heads, "static off / rdma"), lines)


def _passed_references(rows: Rows) -> str:
    heads, lines = _edge_cells(rows, {"local": "one process"})
    return PASSED_REFERENCES.format(table=table(heads, lines))


def _edge_cells(rows: Rows, others: Mapping[str, str]) -> tuple[tuple[str, ...], list[list[str]]]:
    """Heads and lines for `bench.paper.experiments.WAYS`, and for others by name."""
    ways = ("grpc", "rdma", "copying", "dynamic", *others)
    heads = ("tensor", "gRPC", "rdma", "zero copy off", "static off", *others.values())
    return heads, [[row["rdma"].name, *(_cell(row[way]) for way in ways)] for row in _by_name(rows)]


def _gain(row: Mapping[str, Row]) -> float:
    return _times(row["grpc"]).p50 / _times(row["rdma"]).p50


def _step_cells(row: dict[str, Row]) -> list[str]:
    times = [f"{_times(row[protocol]).p50 / 1e3:.1f}" for protocol in ("grpc", "rdma")]
    return [*times, f"{_gain(row):.2f}x"]


def _ends(row: Row) -> list[str]:
    return [f"{row.more['MiB/step']:.0f}", "NOT EQUAL" if row.wrong else "equal"]


def _models(rows: Rows) -> str:
    heads = ("model", "variables, MiB", "gRPC, ms", "rdma, ms", "gRPC / rdma", "one process, ms")
    lines = []
    for row in _by_name(rows):
        mib, equal = _ends(row["rdma"])
        named = row["rdma"].name, f"{row['rdma'].bytes / 2**20:.0f}"
        local = f"{_times(row['local']).p50 / 1e3:.1f}"
        static = f"{row['rdma'].more['static %']:g} %"
        lines.append([*named, *_step_cells(row), local, mib, static, equal])
    return MODELS.format(table=table((*heads, "MiB per step", "static", "losses"), lines))


def _scaling(rows: Rows) -> str:
    heads = ("model", "workers", "gRPC, ms", "rdma, ms", "gRPC / rdma", "MiB per step", "losses")
    lines = (
        [row["rdma"].name, row["rdma"].test, *_step_cells(row), *_ends(row["rdma"])]
        for row in _by_name(rows)
    )
    return SCALING.format(table=table(heads, lines))


def _convergence(rows: Rows) -> str:
    from .experiments import STEPS_IN_A_TURN

    by_protocol = {row.protocol: row.series for row in rows}
    grpc, rdma = by_protocol["grpc"], by_protocol["rdma"]
    equal = grpc["losses"] == rdma["losses"]
    outcome = f"The losses of all {len(grpc['losses'])} steps are "
    outcome += "equal bit for bit, so the curves differ in time only." if equal else "NOT equal."
    lines = []
    for goal in (1.0, 0.5, 0.25, 0.1):
        slow, fast = _seconds_to(grpc, goal), _seconds_to(rdma, goal)
        if slow is not None and fast is not None:
            lines.append([f"loss {goal}", f"{slow:.2f}", f"{fast:.2f}", f"{slow / fast:.2f}x"])
    slow, fast = sum(grpc["seconds"]), sum(rdma["seconds"])
    accuracy = next(row.more["accuracy"] for row in rows if row.protocol == "rdma")
    right = f"all steps, {100 * float(accuracy):.1f} % right on test images"
    lines.append([right, f"{slow:.2f}", f"{fast:.2f}", f"{slow / fast:.2f}x"])
    heads = ("seconds until", "gRPC", "rdma", "gRPC / rdma")
    return CONVERGENCE.format(turn=STEPS_IN_A_TURN, outcome=outcome, table=table(heads, lines))


def _seconds_to(series: Mapping[str, list[float]], goal: float) -> float | None:
    for step, seconds in enumerate(accumulate(series["seconds"]), 1):
        if step >= SMOOTHED and mean(series["losses"][step - SMOOTHED : step]) <= goal:
            return seconds
    return None


SECTIONS: dict[str, Callable[[Rows], str]] = {
    "message_sizes": _message_sizes,
    "verbs_message_sizes": _verbs_message_sizes,
    "soft_roce_message_sizes": _soft_roce_message_sizes,
    "passed_references": _passed_references,
    "models": _models,
    "scaling": _scaling,
    "convergence": _convergence,
}
