"""Measures lookups of embeddings whose rows are divided between two owners.

Keys follow Zipf's law. `table`: one of two ranks, which own a table of `rdma_transport.embeddings`,
looks up the rows of a batch, by an operation in a function of TensorFlow. `exchange`: both ranks
look up at once, by collectives of NumPy arrays, ids to the owners and rows back. `grpc` and `rdma`:
a worker looks up by ``tf.nn.embedding_lookup()`` in a variable that is partitioned over two
parameter servers, as `ParameterServerStrategy` does. All take turns.

The processor time of owners is that of the rank that does not look up, or of both servers.
"""

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from .idle import cpu_seconds
from .report import Result, Row, times_of
from .support.child import Child
from .support.cluster import Cluster, free_port
from .support.embedding_rank import WARM_UP, zipf
from .support.turns import in_turns
from .where import Where, clusters

IDS = 4096 * 26  # a batch of clicks with 26 features, as Criteo's
BATCHES = 4
OWNERS = 2
JOBS = {"worker": 1, "ps": OWNERS}
START_SECONDS, ANSWER_SECONDS = 240.0, 300.0
_RANK = Path(__file__).parent / "support" / "embedding_rank.py"
Turn = Callable[[], tuple[list[float], float]]
"""Returns microseconds of lookups, and the processor time of the owners, in seconds."""


@contextmanager
def table_turns(
    rows: int, dim: int, repeat: int, environment: Mapping[str, str]
) -> Iterator[dict[str, Turn]]:
    """The turns of two ranks with a table."""
    job = {"WORLD_SIZE": str(OWNERS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    job |= {"TORCHELASTIC_RUN_ID": secrets.token_hex(8), **environment}
    words = [str(_RANK), *map(str, (rows, dim, IDS, BATCHES))]
    ranks: list[Child] = []

    def turn(test: str) -> tuple[list[float], float]:
        for rank in ranks:
            rank.say([test, repeat])
        answers = [rank.read(ANSWER_SECONDS) for rank in ranks]
        return answers[0]["us"], answers[1]["seconds"]

    try:
        for rank in range(OWNERS):
            own = {**os.environ, **job, "RANK": str(rank)}
            ranks.append(Child(f"rank {rank}", words, own))
        for each in ranks:
            each.read(START_SECONDS)
        yield {"table": lambda: turn("lookup"), "exchange": lambda: turn("exchange")}
    finally:
        for each in ranks:
            each.end()


def server_turns(stack: ExitStack, cluster: Cluster, rows: int, dim: int, repeat: int) -> Turn:
    """The turns of a worker that looks up in variables of parameter servers."""
    import time

    import tensorflow as tf

    from .support.session import opened

    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        parts = []
        for index in range(OWNERS):
            with tf.device(f"/job:ps/task:{index}"):
                start = tf.zeros([rows // OWNERS, dim])
                parts.append(v1.get_variable(f"part{index}", initializer=start, use_resource=True))
        with tf.device("/job:worker/task:0"):
            index = v1.placeholder(tf.int32, [])
            ids = tf.constant(zipf(rows, IDS, BATCHES))[index]
            found = tf.nn.embedding_lookup(parts, ids)
            first = tf.reduce_sum(found[:1])
        made = v1.global_variables_initializer()
    session = stack.enter_context(opened(cluster.target("worker"), graph))
    session.run(made)
    servers = [cluster["ps", each] for each in range(OWNERS)]

    def turn() -> tuple[list[float], float]:
        samples = []
        before = sum(map(cpu_seconds, servers))
        for each in range(WARM_UP + repeat):
            begin = time.perf_counter()
            session.run([first, found.op], {index: each % BATCHES})
            samples.append(1e6 * (time.perf_counter() - begin))
        return samples[WARM_UP:], sum(map(cpu_seconds, servers)) - before

    return turn


def embeddings(
    where: Where, dims: list[int], owner_bytes: int, repeat: int = 10, rounds: int = 3
) -> Result:
    """Rows of each length of a row, by what looks it up."""
    options = {"ids": IDS, "owner_bytes": owner_bytes, "repeat": repeat, "rounds": rounds}
    title = f"lookups of {IDS} rows of {OWNERS} owners, by Zipf's law"
    result = Result("embeddings", title, options, "per_second", unit="ms")
    for number, dim in enumerate(dims):
        rows = OWNERS * (owner_bytes // (4 * dim))
        with ExitStack() as stack:
            made: dict[str, Any] = {}
            if where.protocols:
                made = stack.enter_context(clusters(where, JOBS))
            where.bar.at(number / len(dims), f"dim {dim}: making tables")
            turns: dict[str, Turn] = {
                name: server_turns(stack, cluster, rows, dim, repeat)
                for name, cluster in made.items()
            }
            turns |= stack.enter_context(table_turns(rows, dim, repeat, where.environment))
            where.bar.at(number / len(dims), f"dim {dim}: measuring")
            found = in_turns(turns, rounds)
            result.add_traffic(made)
        for name, measured in found.items():
            samples = [each for part, _ in measured for each in part]
            times = times_of(samples)
            row = Row("lookup", f"dim {dim}", 4 * dim * IDS, name, len(samples), times)
            row = Row(**{**vars(row), "per_second": IDS / times.p50 * 1e6})
            lookups = rounds * (repeat + WARM_UP) * IDS
            if name != "exchange":
                spent = sum(seconds for _, seconds in measured)
                row.more["owners' CPU, ns/row"] = round(1e9 * spent / lookups, 1)
            result.rows.append(row)
    result.compare(["rdma", "table", "exchange"])
    result.notes += [
        "table: rdma_transport.embeddings; exchange: all-to-all of ids and rows, by NumPy; grpc, "
        "rdma: tf.nn.embedding_lookup() in a variable of two parameter servers.",
    ]
    return result
