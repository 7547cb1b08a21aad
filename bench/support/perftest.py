"""What other transports measure beside the fabric: the tests of perftest, in turns with it."""

from collections.abc import Callable, Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Figures:
    """What one test found. `p50`: us, half of a round trip of a write, or a whole read."""

    p50: float
    gbps: float


@dataclass(frozen=True)
class Other:
    """Another transport: which tests it has, and how to run one.

    `measure` takes a test ("write_bw"), the bytes of a transfer and the number of transfers.
    """

    name: str
    tests: Collection[str]
    measure: Callable[[str, int, int], Figures]
