"""The order in which what is compared takes turns."""

import random
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def rounds(compared: Iterable[T], count: int) -> Iterator[T]:
    """Yield all of them `count` times, each round in another order, the same in each run.

    The end of one disturbs the one after it: threads go on spinning, and caches hold its bytes.
    """
    chance, items = random.Random(0), list(compared)
    for _ in range(count):
        yield from chance.sample(items, len(items))
