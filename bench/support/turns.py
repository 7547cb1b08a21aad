"""The order in which what is compared takes turns."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")


def rounds(compared: Iterable[T], count: int) -> Iterator[T]:
    """Yield all of them `count` times, each round in another order, the same in each run.

    The end of one disturbs the one after it: threads go on spinning, and caches hold its bytes.
    """
    chance, items = random.Random(0), list(compared)
    for _ in range(count):
        yield from chance.sample(items, len(items))


def in_turns(compared: Mapping[str, Callable[[], T]], count: int) -> dict[str, list[T]]:
    """Call all of them `count` times in turns; return what each returned, by name."""
    found: dict[str, list[T]] = {name: [] for name in compared}
    for name in rounds(compared, count):
        found[name].append(compared[name]())
    return found
