"""The three micro-benchmarks of TF-gRPC-Bench, with TensorFlow tasks instead of bare RPCs.

See Biswas, Lu, Panda: Designing a Micro-Benchmark Suite to Evaluate gRPC for TensorFlow, arXiv
1804.01138. In a call, a worker sends a message of several buffers to a parameter server. After the
server has received all buffers, it replies with all of them (`latency`) or with one byte
(`bandwidth`, `throughput`). Several calls run in sequence inside one step, and the worker records
the time between them. So each call is timed separately, without the cost of starting a step. The
first call of a step is not counted.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from .payloads import Payload
from .report import GB, Result, Row, times_of
from .support.cluster import Cluster
from .support.counters import Counts, combine, reasons_since, sent_since
from .support.options import SHARED_MEMORY
from .support.progress import QUIET, Bar
from .where import Where, clusters

KINDS = ("latency", "bandwidth", "throughput")
HEADLINES = {"latency": "p50", "bandwidth": "gbps", "throughput": "per_second"}
TITLES = {
    "latency": "point-to-point latency: a round trip, of a message to the server and back",
    "bandwidth": "point-to-point bandwidth: a round trip, of a message and its acknowledgement",
    "throughput": "parameter-server throughput: every worker calls every server",
}
TURNS = 5  # of each protocol
STEP_BYTES = 64 * 2**20  # about as much is sent in a step
STEP_TENSORS = 2000  # about as many: building a graph takes time
MIN_CALLS, MAX_CALLS = 3, 25
_names = itertools.count()


class Program:
    """The graph of one kind of calls with one payload, for tasks of jobs "worker" and "ps"."""

    def __init__(self, kind: str, payload: Payload, workers: int, servers: int) -> None:
        import tensorflow as tf

        from .support.session import v1

        self.workers = [f"/job:worker/task:{index}" for index in range(workers)]
        self.servers = [f"/job:ps/task:{index}" for index in range(servers)]
        pairs = workers * servers
        by_size = STEP_BYTES // (payload.bytes * pairs)
        by_number = STEP_TENSORS // (len(payload.sizes) * pairs)
        self.count = max(min(by_size, by_number, MAX_CALLS), MIN_CALLS)  # in a step
        self.echo = kind == "latency"
        self.variables: list[Any] = []
        self.equal: list[Any] = []
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.ticks = v1.placeholder(tf.int32, [])
            self.stamps = [self._chain(worker, payload) for worker in self.workers]
            self.advance = tf.group(*(v.assign_add(tf.ones_like(v)) for v in self.variables))
            self.initializer = v1.global_variables_initializer()

    def _chain(self, worker: str, payload: Payload) -> list[Any]:
        """The times between a worker's calls."""
        import tensorflow as tf

        buffers = [(size, [index, size]) for index, size in enumerate(payload.sizes)]
        with tf.device(worker):
            sources = [self._source(*each) for each in buffers]
            with tf.control_dependencies(sources):
                stamps = [tf.timestamp()]
        expected: dict[str, list[Any]] = {}  # on the device that compares
        for place in [worker] if self.echo else self.servers:
            with tf.device(place):
                expected[place] = [self._expected(*each) for each in buffers]
        for _ in range(1 + self.count):
            with tf.control_dependencies([stamps[-1]]), tf.device(worker):
                message = [tf.identity(source) for source in sources]
            answers = []
            for server in self.servers:
                with tf.device(server):
                    arrived = [tf.identity(part) for part in message]
                    with tf.control_dependencies(arrived):
                        answer = [tf.constant([1], tf.uint8)]
                        if self.echo:
                            answer = [tf.identity(part) for part in arrived]
                with tf.device(worker):
                    answers += [tf.identity(part) for part in answer]
                got = answers[-len(buffers) :] if self.echo else arrived
                place = worker if self.echo else server
                with tf.device(place):
                    pairs = zip(got, expected[place], strict=True)
                    self.equal += [tf.reduce_all(tf.equal(*pair)) for pair in pairs]
            with tf.control_dependencies(answers), tf.device(worker):
                stamps.append(tf.timestamp())
        return stamps

    def _source(self, size: int, seed: Sequence[int]) -> Any:
        import tensorflow as tf

        from .support.session import v1

        variable = v1.get_variable(
            f"buffer{next(_names)}", initializer=_bytes(size, seed), use_resource=True
        )
        self.variables.append(variable)
        return tf.identity(variable.read_value())

    def _expected(self, size: int, seed: Sequence[int]) -> Any:
        """What a source holds after so many ticks; made anew where it is compared."""
        import tensorflow as tf

        return _bytes(size, seed) + tf.cast(self.ticks, tf.uint8)


def _bytes(size: int, seed: Sequence[int]) -> Any:
    import tensorflow as tf

    return tf.cast(tf.random.stateless_uniform([size], seed, 0, 256, tf.int32), tf.uint8)


class Calls:
    """A session that runs a program on a cluster, until `stack` ends."""

    def __init__(self, stack: ExitStack, cluster: Cluster, program: Program) -> None:
        from .support.session import config, opened

        self.program, self.tick = program, 0
        target = cluster.target("worker")
        self.session = stack.enter_context(opened(target, program.graph, config()))
        self.session.run(program.initializer)

    def step(self) -> list[list[float]]:
        """Seconds of each call, by worker."""
        stamps = self.session.run(self.program.stamps)
        return [[float(b - a) for a, b in itertools.pairwise(each)][1:] for each in stamps]

    def wrong(self) -> int:
        """Change all buffers, and count those that arrive with other bytes."""
        self.session.run(self.program.advance)
        self.tick += 1
        equal = self.session.run(self.program.equal, {self.program.ticks: self.tick % 256})
        return sum(not each for each in equal)


@dataclass
class Side:
    """One protocol's calls, and their results."""

    calls: Calls
    cluster: Cluster
    wrong: int = 0
    by_worker: list[list[float]] = field(default_factory=list)
    sent: Counts | None = None
    reasons: Counts = field(default_factory=dict)

    def turn(self, seconds: float, bar: Bar, what: str) -> None:
        """Call for so many seconds; add the times, and what was sent, to the results."""
        self.calls.step()  # absorbs the effects of the other protocol's turn
        before = self.cluster.counted()
        for _ in bar.timed(seconds, what):
            for samples, new in zip(self.by_worker, self.calls.step(), strict=True):
                samples += new
        after = self.cluster.counted()
        sent = sent_since(before, after)
        if sent is not None:
            self.sent = combine(self.sent or {}, sent, 1)
            self.reasons = combine(self.reasons, reasons_since(before, after), 1)


def measure(
    kind: str,
    payloads: Sequence[Payload],
    by_protocol: Mapping[str, Cluster],
    *,
    seconds: float = 10.0,
    warm_up: float = 2.0,
    bar: Bar = QUIET,
) -> Result:
    """Rows for each payload and protocol, which take turns; `seconds` are of each."""
    some = next(iter(by_protocol.values()))
    options = {
        "workers": len(some.spec["worker"]),
        "servers": len(some.spec["ps"]),
        "seconds": seconds,
        "warm_up": warm_up,
        "buffers": {payload.name: list(payload.sizes) for payload in payloads},
    }
    result = Result(kind, TITLES[kind], options, HEADLINES[kind])
    for index, payload in enumerate(payloads):
        part = bar.section(index, len(payloads))
        result.rows += _rows(kind, payload, by_protocol, seconds, warm_up, part, result)
    if "rdma" in by_protocol:
        result.routes = by_protocol["rdma"].routes()
    if any(route["transport"] == SHARED_MEMORY for route in result.routes):
        result.notes.append(
            "On shared memory the receiver uses the bytes in place: they do not move, and the rate "
            "shows how soon they can be used."
        )
    result.compare()
    return result


def _rows(
    kind: str,
    payload: Payload,
    by_protocol: Mapping[str, Cluster],
    seconds: float,
    warm_up: float,
    bar: Bar,
    result: Result,
) -> list[Row]:
    some = next(iter(by_protocol.values())).spec
    bar.at(0, f"{payload.name}: making the graph")
    program = Program(kind, payload, len(some["worker"]), len(some["ps"]))
    with ExitStack() as stack:
        sides = {
            protocol: Side(Calls(stack, cluster, program), cluster)
            for protocol, cluster in by_protocol.items()
        }
        done = 0.0
        total = (warm_up + seconds) * len(sides) or 1.0

        def ahead(length: float) -> Bar:
            nonlocal done
            start, done = done / total, done + length
            return Bar(lambda part, what: bar.at(start + part * length / total, what))

        for protocol, side in sides.items():
            side.wrong += side.calls.wrong()
            side.by_worker = [[] for _ in program.workers]
            for _ in ahead(warm_up).timed(warm_up, f"{payload.name}: {protocol} warms up"):
                side.calls.step()
        for turn in range(TURNS):
            for protocol, side in sides.items():
                what = f"{payload.name}: {protocol}, turn {turn + 1}/{TURNS}"
                side.turn(seconds / TURNS, ahead(seconds / TURNS), what)
        for side in sides.values():
            side.wrong += side.calls.wrong()
            result.reasons = combine(result.reasons, side.reasons, 1)
        return [_row(kind, payload, protocol, side) for protocol, side in sides.items()]


def _row(kind: str, payload: Payload, protocol: str, side: Side) -> Row:
    servers = len(side.calls.program.servers)
    samples = [sample for worker in side.by_worker for sample in worker]
    # The slowest worker's time counts, for all begin together.
    slowest = max(sum(worker) for worker in side.by_worker)
    rate = len(samples) * servers / slowest
    return Row(
        test=kind,
        name=payload.name,
        bytes=payload.bytes,
        protocol=protocol,
        iterations=len(samples) * servers,
        times=times_of([1e6 * sample for sample in samples]),
        gbps=rate * payload.bytes / GB if kind != "latency" else None,
        per_second=rate if kind != "latency" else None,
        wrong=side.wrong,
        sent=side.sent,
    )


def exchange(
    where: Where,
    kinds: Sequence[str],
    payloads: Sequence[Payload],
    workers: int = 1,
    servers: int = 1,
    seconds: float = 10.0,
    warm_up: float = 2.0,
) -> Iterator[Result]:
    """One result for each of the kinds, all in the same clusters."""
    with clusters(where, {"worker": workers, "ps": servers}) as made:
        for index, kind in enumerate(kinds):
            yield measure(
                kind,
                payloads,
                made,
                seconds=seconds,
                warm_up=warm_up,
                bar=where.bar.section(index, len(kinds)),
            )
