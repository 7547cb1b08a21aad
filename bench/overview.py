"""A short run of everything, at both levels."""

from collections.abc import Iterator
from dataclasses import replace

from bench import levels
from bench.exchange import KINDS
from bench.levels import Where
from bench.payloads import payload
from bench.report import Result

PARTS = 5


def overview(where: Where) -> Iterator[Result]:
    """One result of each benchmark, none of them long."""

    def part(index: int) -> Where:
        return replace(where, bar=where.bar.section(index, PARTS))

    yield levels.fabric(part(0), [64, 2**16, 2**20], iterations=500, rounds=3)
    yield levels.edges(part(1), [64, 2**16, 2**20], repeat=6)
    messages = [payload("small"), payload("uniform")]
    yield from levels.exchange(part(2), KINDS, messages, seconds=1.0, warm_up=0.5)
    yield levels.all_reduce(part(3), [2**20], repeat=6)
    yield levels.train(part(4), ["gru"], steps=6)
