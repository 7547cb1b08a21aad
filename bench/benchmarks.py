"""The benchmarks of the command line. Each measures and returns a `bench.report.Result`."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from .payloads import Payload
from .report import GB, Result, Row, Times, bus_gbps, times_of
from .support.exit import NotAvailableError, watched
from .support.hosts import Layout, There, everything_here
from .support.options import SHARED_MEMORY
from .support.perftest import Other
from .support.progress import QUIET, Bar
from .support.sizes import size_name
from .support.timing import Summary


@dataclass(frozen=True)
class Where:
    """The protocols to compare, and the hosts; `others` are hosts on which an agent waits."""

    protocols: tuple[str, ...] = ("rdma",)
    fabric: str = ""  # empty: RDMA_TRANSPORT_FABRIC
    layout: Layout = everything_here
    others: Sequence[There] = ()
    bar: Bar = QUIET

    @property
    def environment(self) -> dict[str, str]:
        """The environment of all tasks."""
        return {"RDMA_TRANSPORT_FABRIC": self.fabric} if self.fabric else {}


def fabric(
    where: Where,
    sizes: Sequence[int],
    iterations: int = 1000,
    rounds: int = 5,
    most: int = 2**28,
    beside: Sequence[str] = (),
) -> Result:
    """Rows of the fabric alone, between two processes: bandwidths, latencies, notifications.

    `beside`: and of UCX (ucx) and MPI (mpi) through shared memory, in the same run. Ratios compare
    with the first of BESIDE that is measured.
    """
    from .fabric import RATE_BYTES, Wire, opened, own_peer

    options = {"iterations": iterations, "rounds": rounds, "most": most}
    for name in beside:
        if why := _why_not(name):
            raise NotAvailableError(why)
    with ExitStack() as stack:
        if where.others:
            connection = stack.enter_context(where.others[-1].ask("fabric"))
            wire = Wire(connection)
        else:
            wire = stack.enter_context(own_peer())
        bench = stack.enter_context(opened(wire, where.fabric, sizes, rounds, most))
        if beside and bench.meter.fabric() != SHARED_MEMORY:
            raise NotAvailableError(
                f"{BESIDE[beside[0]]} is measured through shared memory, and this is "
                f"{bench.meter.fabric()}. Use --fabric shm on one host"
            )
        bench.others, notes = _others(beside, stack)
        report = bench.report(list(sizes), iterations, where.bar.track)
    name = report["fabric"]
    title = (
        "one-sided operations between two processes; read_lat: a round trip, other latencies: half"
    )
    result = Result("fabric", title, options, "gbps")
    result.routes = [
        {"from": "this host", "to": "the peer", "transport": name, "reason": report["route"]}
    ]
    result.devices = [report["device"], report["peer_device"]]
    for row in report["rows"]:
        result.rows += _fabric_rows(row, name, beside)
    rate = report["notifications_per_second"]
    count = max(iterations * 5, 8)
    result.rows.append(
        Row(
            "notify_rate",
            size_name(RATE_BYTES),
            RATE_BYTES,
            name,
            count,
            per_second=rate,
            wrong=report["notifications_wrong"],
        )
    )
    result.notes.append(
        "write_lat: a write with its notification. #wrong: bytes that differ after each round."
    )
    if name == SHARED_MEMORY:
        result.notes.append("uncached_memcpy: over more memory than the caches hold.")
    result.notes += notes
    return result


BESIDE = {"mpi": "MPI", "ucx": "UCX"}


def _why_not(name: str) -> str:
    """Return why one of BESIDE cannot be measured; empty if it can."""
    from .support import mpi, ucx

    return ucx.missing() if name == "ucx" else mpi.find_mpi()[1]


def _others(beside: Sequence[str], stack: ExitStack) -> tuple[list[Other], list[str]]:
    """Return those of BESIDE, and a note about each. They end with the stack."""
    from .support import mpi, ucx

    others, notes = [], []
    if "mpi" in beside:
        pair = stack.enter_context(mpi.Pair(mpi.find_mpi()[0]))
        others.append(Other("mpi", mpi.TESTS, pair.measure))
        notes.append(
            f"MPI is {pair.library}, through mpi4py: messages between two ranks, {mpi.IN_FLIGHT} "
            "in flight; write_bw and write_lat are those of messages. Each call takes Python's "
            "time, too, which counts for small ones."
        )
    if "ucx" in beside:
        others.append(Other("ucx", ucx.TESTS, ucx.measure))
        notes.append(f"UCX {ucx.version()} over {ucx.TRANSPORTS}, by {ucx.PROGRAM}.")
    return others, notes


# What the bandwidths and latencies of a row are called, and whose they are; None: the fabric's.
_RATES = {
    "write": ("write_bw", None),
    "mpi_write": ("write_bw", "mpi"),
    "ucx_write": ("write_bw", "ucx"),
    "read": ("read_bw", None),
    "ucx_read": ("read_bw", "ucx"),
    "memcpy": ("memcpy", "cpu"),
    "uncached_memcpy": ("uncached_memcpy", "cpu"),
}
_LATENCIES = ("write", "read", "notify")


def _fabric_rows(row: dict[str, Any], fabric: str, beside: Sequence[str]) -> list[Row]:
    size, rows = row["bytes"], []
    compared = next((name for name in BESIDE if name in beside), "")
    for name, (test, whose) in _RATES.items():
        rate = row.get(f"{name}_gbps")
        if rate is not None:
            other = row.get(f"{compared}_{name}_gbps")
            rows.append(
                Row(
                    test,
                    size_name(size),
                    size,
                    whose or fabric,
                    row["transfers"],
                    gbps=rate,
                    per_second=rate * GB / size,
                    wrong=row.get(f"{name}_wrong"),
                    ratio=rate / other if other else None,
                )
            )
    for test in _LATENCIES:
        known = row.get(f"{test}_us")
        if known:
            count, other = known["iterations"], row.get(f"{compared}_{test}_us")
            figures = {name: known[name] for name in ("min", "p50", "mean", "p99", "max")}
            times = Times(**figures, p999=known["p99.9"])
            ratio = other / times.p50 if other and times.p50 else None
            named = (f"{test}_lat", size_name(size), size)
            rows.append(Row(*named, fabric, count, times, wrong=known["wrong"], ratio=ratio))
            for name in beside:
                if (p50 := row.get(f"{name}_{test}_us")) is not None:
                    rows.append(Row(*named, name, count, Times(p50=p50)))
    return rows


@contextmanager
def _pairs(
    where: Where,
    workers: int = 1,
    servers: int = 1,
    programs: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[dict[str, Any]]:
    """A cluster for each protocol, with jobs "worker" and "ps"; if a task dies, so does this.

    `programs` is that of Cluster.
    """
    from .support.cluster import Cluster
    from .support.tf_import import import_tensorflow

    where.bar.at(0, "importing TensorFlow")
    import_tensorflow()
    with ExitStack() as stack:
        made = {}
        for protocol in where.protocols:
            where.bar.at(0, f"{protocol}: starting {workers + servers} tasks")
            jobs = {"worker": workers, "ps": servers}
            cluster = Cluster(
                jobs, protocol, where.environment, layout=where.layout, programs=programs
            )
            made[protocol] = stack.enter_context(cluster)
            stack.callback(watched(made[protocol]))
        yield made


def exchange(
    where: Where,
    kinds: Sequence[str],
    payloads: Sequence[Payload],
    workers: int = 1,
    servers: int = 1,
    serialized: bool = False,
    seconds: float = 10.0,
    warm_up: float = 2.0,
) -> Iterator[Result]:
    """One result for each of the kinds of `bench.exchange`, all in the same clusters."""
    from . import exchange as calls

    with _pairs(where, workers, servers) as clusters:
        for index, kind in enumerate(kinds):
            yield calls.measure(
                kind,
                payloads,
                clusters,
                serialized=serialized,
                seconds=seconds,
                warm_up=warm_up,
                bar=where.bar.section(index, len(kinds)),
            )


def edges(where: Where, sizes: Sequence[int], repeat: int = 15) -> Result:
    """Time that an edge between two tasks adds to a computation, and to passing a reference."""
    from . import edges as computed
    from . import references
    from .remote_session import SESSION_TASK

    result = Result("edges", "time per edge, one way, inside a step", {"repeat": repeat}, "p50")
    jobs = ("worker", "ps")
    with _pairs(where, programs={jobs[0]: SESSION_TASK}) as clusters:
        where.bar.at(0, "making the graphs")
        tracks = [where.bar.section(index, 2).track for index in range(2)]
        rows = computed.measure_on(clusters, list(sizes), repeat, jobs, tracks[0])
        cost = computed.fixed_cost(clusters, repeat, jobs)
        passed = references.measure_on(clusters, list(sizes), repeat, jobs, tracks[1])
        _note_transports(result, clusters)
    for row in rows:
        result.rows += _edge_rows("edge", where.protocols, row, repeat)
        result.rows += _edge_rows("hop", ("local", "floor"), row, repeat)
    for name, summary in cost.items():
        test = "step" if name == "local" else "step_cost"
        result.rows.append(Row(test, size_name(4), 4, name, repeat, times=_difference(summary)))
    for row in passed:
        result.rows += _edge_rows("reference", (*where.protocols, "local"), row, repeat)
    result.notes += [
        "edge: what an edge adds to a chain of x + 1 and x * 0.5, with its share of step_cost.",
        "hop: a whole hop of that chain; local: in one process; floor: two processes that share "
        "memory, or between hosts one TCP connection, and do nothing else, on one thread each.",
        "step_cost: what a step with one edge of 4 B adds to that step in one process.",
        "reference: an edge of a chain of identities, which passes a reference: nothing is read. "
        "local: between two CPU devices of one process.",
    ]
    result.compare()
    return result


def _edge_rows(
    test: str, protocols: Sequence[str], row: dict[str, Any], repeat: int
) -> Iterator[Row]:
    for name in protocols:
        yield Row(
            test=test,
            name=size_name(row["bytes"]),
            bytes=row["bytes"],
            protocol=name,
            iterations=repeat,
            times=_difference(row[name]),
            wrong=row[f"{name}_wrong"],
            sent=row.get(f"{name}_sent"),
        )


def all_reduce(where: Where, sizes: Sequence[int], workers: int = 2, repeat: int = 9) -> Result:
    """Measure TensorFlow's all-reduce between workers."""
    from .collectives import measure_on
    from .support.collective_cluster import CollectiveCluster

    options = {"workers": workers, "repeat": repeat}
    result = Result("all-reduce", f"all-reduce of {workers} workers", options, "p50")
    with ExitStack() as stack:
        clusters = {}
        for protocol in where.protocols:
            where.bar.at(0, f"{protocol}: starting {workers} workers")
            clusters[protocol] = stack.enter_context(
                CollectiveCluster(workers, protocol, where.environment, layout=where.layout)
            )
        measured = measure_on(clusters, ["all_reduce"], list(sizes), repeat, where.bar.track)
        _note_transports(result, clusters)
    for row in measured:
        for protocol in where.protocols:
            # More than two workers of one host reduce in another order than over gRPC.
            first = where.protocols[0] if workers == 2 else protocol
            right = row["digests"][first][0]
            times = _difference(row[protocol])
            gbps = row["bytes"] / times.p50 / 1e3 if row[protocol].resolved else None
            result.rows.append(
                Row(
                    test="all-reduce",
                    name=size_name(row["bytes"]),
                    bytes=row["bytes"],
                    protocol=protocol,
                    iterations=repeat,
                    times=times,
                    gbps=gbps,
                    bus_gbps=bus_gbps("all_reduce", gbps, workers),
                    wrong=sum(digest != right for digest in row["digests"][protocol]),
                    sent=row[f"{protocol}_sent"],
                )
            )
    result.notes.append(
        "Times: the difference between functions with many and with few repetitions, per "
        "repetition, on the slowest worker. GB/s: the bytes of the tensor over p50; busbw: as "
        "nccl-tests define it. #wrong: results that are not equal bit for bit; those of more than "
        "two workers are compared with each other alone."
    )
    result.compare()
    return result


def collectives(
    where: Where,
    systems: Sequence[str],
    ops: Sequence[str],
    sizes: Sequence[int],
    ranks: int = 2,
    iterations: int = 1000,
    rounds: int = 3,
) -> Result:
    """Rows of collectives of NumPy arrays, by system: rdma, registered, mpi and grpc.

    Ratios compare with MPI, or else with gRPC.
    """
    from .numpy_collectives import MESSAGES, OTHERS, Job, find_others, measure

    options = {"ranks": ranks, "iterations": iterations, "rounds": rounds}
    title = f"collectives of float32 arrays, {ranks} ranks on this host"
    result = Result("collectives", title, options, "p50")
    missing = find_others(systems)
    others = [system for system in OTHERS if missing.get(system) == ""]
    for system, why in missing.items():
        if why:
            result.notes.append(f"{OTHERS[system]} was skipped: {why}.")
    systems = [system for system in systems if not missing.get(system)]
    job = Job(ops, sizes, ranks, iterations, where.environment)
    measured = measure(systems, job, rounds, where.bar.track)
    for (system, op, size), row in sorted(measured.items(), key=lambda item: item[0][1:]):
        times = times_of(row["us"])
        moved = size * MESSAGES.get(op, 1)
        gbps = moved / times.p50 / 1e3 if size and times.p50 else None
        other = measured.get((others[0], op, size)) if others else None
        result.rows.append(
            Row(
                test=op,
                name=size_name(size),
                bytes=size,
                protocol=system,
                iterations=len(row["us"]),
                times=times,
                gbps=gbps,
                bus_gbps=bus_gbps(op, gbps, ranks),
                wrong=row["wrong"] if system != "grpc" else None,
                ratio=times_of(other["us"]).p50 / times.p50
                if other and system not in others and times.p50
                else None,
                overlap=statistics.median(row["overlap"]) if row["overlap"] else None,
            )
        )
    result.notes.append(
        "Times: of rank 0, from the end of a barrier. Sizes: bytes of one rank's array, or of its "
        "part of the larger one; GB/s: these bytes over p50; busbw: GB/s of the bus, as nccl-tests "
        "define it. registered: arrays of Communicator.empty(). #wrong: values that differ."
    )
    if any(op in MESSAGES for op in ops):
        result.notes.append(
            "round_trip: a message from rank 0 to rank 1 and back; in_flight: 64 messages, started "
            "together, and their acknowledgment; GB/s: of all these messages."
        )
    if others:
        result.notes.append(f"The ratio is how many times as fast as {OTHERS[others[0]]}.")
    if "grpc" in others:
        result.notes.append("gRPC: TensorFlow's ring; its samples are means of several calls.")
    if "iall_reduce" in ops:
        result.notes.append(
            "overlap: the percentage of a non-blocking all-reduce that is hidden behind a "
            "computation of equal time; a pause instead if the ranks have no two cores each."
        )
    return result


def train(
    where: Where,
    models: Sequence[str],
    batch: int = 2,
    steps: int = 8,
    seconds: float = 30.0,
    warm_up: int = 6,
) -> Result:
    """Training steps of `bench.models`, with one parameter server and two workers."""
    from .models import MODELS
    from .steps import measure_steps
    from .support.counters import MODES, NOTHING, above_zero, combine
    from .support.tf_import import import_tensorflow

    where.bar.at(0, "importing TensorFlow")
    import_tensorflow()
    options = {"batch": batch, "steps": steps, "seconds": seconds, "warm_up": warm_up}
    result = Result("train", "training step of 1 parameter server and 2 workers", options, "p50")
    for index, name in enumerate(models):
        bar = where.bar.section(index, len(models))
        done = measure_steps(
            MODELS[name],
            where.protocols,
            batch,
            steps,
            seconds,
            warm_up,
            _named(name, bar),
            where.layout,
            where.environment,
        )
        result.routes = result.routes or done.routes
        if not done.finite:
            result.problems.append(f"{name}: a loss is not finite")
        first = next(iter(done.sides.values())).losses
        for protocol, side in done.sides.items():
            counted = done.counted[protocol]
            if counted is not None:
                reasons = above_zero(counted.get("fallback_reasons", {}))
                result.reasons = combine(result.reasons, reasons, 1)
            different = sum(a != b for a, b in zip(side.losses, first, strict=True))
            result.rows.append(
                Row(
                    test="step",
                    name=name,
                    bytes=round(MODELS[name].mib * 2**20),
                    protocol=protocol,
                    iterations=done.measured,
                    times=times_of([1e3 * each for each in side.milliseconds]),
                    per_second=1e3 * done.measured / sum(side.milliseconds),
                    wrong=different if len(done.sides) > 1 else None,
                    sent=counted and {mode: counted["sent"].get(mode, NOTHING) for mode in MODES},
                )
            )
    result.notes.append(
        "#bytes: size of the variables. #wrong: steps whose losses differ between protocols."
    )
    result.compare()
    return result


def _named(name: str, bar: Bar) -> Callable[[str, float], None]:
    return lambda what, part: bar.at(part, f"{name}: {what}")


def _difference(summary: Summary) -> Times:
    return Times(min=summary.minimum, p50=summary.median, low=summary.low, high=summary.high)


def _note_transports(result: Result, clusters: Mapping[str, Any]) -> None:
    """Record the transports of rdma's peers, and why tensors fell back to gRPC."""
    from .support.counters import above_zero

    if "rdma" in clusters:
        counted = clusters["rdma"].counted()
        result.routes = clusters["rdma"].routes()
        result.reasons = above_zero(counted["fallback_reasons"]) if counted else {}
