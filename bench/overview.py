"""A short run of all benchmarks."""

from collections.abc import Iterator
from dataclasses import replace

from .collectives import collectives
from .edges import edges
from .exchange import KINDS, exchange
from .fabric import fabric
from .payloads import payload
from .report import Result
from .train_models import train
from .where import Where

PARTS = 5


def overview(where: Where) -> Iterator[Result]:
    """One result of each benchmark, none of them long."""

    def part(index: int) -> Where:
        return replace(where, bar=where.bar.section(index, PARTS))

    yield fabric(part(0), [64, 2**16, 2**20], iterations=500, rounds=3)
    yield from edges(part(1), [64, 2**16, 2**20], repeat=6)
    messages = [payload("small"), payload("uniform"), payload("burst")]
    yield from exchange(part(2), KINDS, messages, seconds=1.0, warm_up=0.5)
    yield collectives(part(3), ["all_reduce"], [2**20], repeat=6)
    yield train(part(4), ["gru"], steps=6)
