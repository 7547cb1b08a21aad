"""A short run of all benchmarks."""

from collections.abc import Iterator
from dataclasses import replace

from . import benchmarks
from .benchmarks import Where
from .exchange import KINDS
from .payloads import payload
from .report import Result

PARTS = 5


def overview(where: Where) -> Iterator[Result]:
    """One result of each benchmark, none of them long."""

    def part(index: int) -> Where:
        return replace(where, bar=where.bar.section(index, PARTS))

    yield benchmarks.fabric(part(0), [64, 2**16, 2**20], iterations=500, rounds=3)
    yield benchmarks.edges(part(1), [64, 2**16, 2**20], repeat=6)
    messages = [payload("small"), payload("uniform"), payload("burst")]
    yield from benchmarks.exchange(part(2), KINDS, messages, seconds=1.0, warm_up=0.5)
    yield benchmarks.all_reduce(part(3), [2**20], repeat=6)
    yield benchmarks.train(part(4), ["gru"], steps=6)
