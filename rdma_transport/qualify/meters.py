"""Pairs of hosts that measure: each sends to one host, and receives from another, at a time."""

import contextlib
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rdma_transport._fabric import Meter
from rdma_transport.fabric import FabricError
from rdma_transport.qualify.hosts import Hosts, StepError, UnendedError, side_by_side

STALLED = 20.0
"""Seconds without progress, after which a measurement fails."""
SLOWEST = 20e6
"""Bytes per second, below which a large transfer counts as one that makes no progress."""
_CONNECT = 30.0


@dataclass
class Pair:
    """This host's two ends: `out` to the host `distance` ranks on, `into` from the one before."""

    hosts: Hosts
    out: Meter
    into: Meter
    busy: bool = False
    """A thread still uses the meters."""

    def both(self, test: str, nbytes: int, iterations: int, duration: float = 0.0) -> list[Any]:
        """Do a test in both roles at once; return ``(seconds, faults)`` of all hosts."""
        stalled, limit = _limits(nbytes, duration)

        def step() -> Any:
            calls: dict[str, Callable[[], Any]] = {
                "sending": lambda: self.out.run(test, nbytes, iterations, stalled, duration),
                "receiving": lambda: self._serve(test, nbytes, iterations),
            }
            try:
                seconds, faults = side_by_side(calls, limit)["sending"]
            except UnendedError:
                self.busy = True
                raise
            except FabricError as error:
                first = self.into.found()["first"]  # explains the other end's wait
                raise FabricError(f"{first}; {error}" if first else str(error)) from None
            return sum(seconds), faults

        return self.hosts.together(step, limit)

    def one_way(self, test: str, nbytes: int, iterations: int) -> float:
        """Do a test from host 0 to the other end of its `out`, while all others wait.

        Return its seconds; of a latency, the median of all.
        """
        stalled, limit = _limits(nbytes, 0)

        def step() -> float:
            if self.hosts.rank == 0:
                seconds, wrong = self.out.run(test, nbytes, iterations, stalled)
                if wrong:
                    raise FabricError(f"{wrong} bytes of {test} of {nbytes} bytes differ")
                return statistics.median(seconds)
            if self.hosts.rank == 1:
                self._serve(test, nbytes, iterations)
            return 0.0

        return self.hosts.together(step, limit)[0]

    def _serve(self, test: str, nbytes: int, iterations: int) -> None:
        stalled, limit = _limits(nbytes, 0)
        # What the peer does alone is no progress here.
        alone = test.endswith("_bandwidth") or test == "read_latency"
        self.into.serve(test, nbytes, iterations, limit if alone else stalled)


def _limits(nbytes: int, duration: float) -> tuple[float, float]:
    """Seconds without progress, of which one transfer is the least, and of a whole test."""
    stalled = STALLED + nbytes / SLOWEST
    return stalled, duration + 3 * stalled


@contextlib.contextmanager
def paired(hosts: Hosts, distance: int, largest: int) -> Iterator[Pair]:
    """Connect all hosts with those `distance` ranks on, for up to `largest` bytes at a time."""
    made: list[Meter] = []
    pair = None

    def opened() -> str:
        made[:] = [Meter(hosts.fabric, largest), Meter(hosts.fabric, largest)]
        return made[0].address().hex()

    try:
        addresses = hosts.together(opened, _CONNECT)
        out, into = made

        def accepted() -> str:
            into.connect(bytes.fromhex(addresses[hosts.other(-distance)]), False, hosts.key)
            return into.address().hex()

        answers = hosts.together(accepted, _CONNECT)

        def connected() -> str:
            out.connect(bytes.fromhex(answers[hosts.other(distance)]), True, hosts.key)
            calls = {
                end: lambda meter=meter: meter.introduce(_CONNECT)
                for end, meter in (("connecting", out), ("being connected", into))
            }
            side_by_side(calls, 2 * _CONNECT)
            return ""

        try:
            hosts.together(connected, 2 * _CONNECT)
        except StepError as error:
            raise StepError(f"{error} ({out.fabric()}, {out.route()})") from None
        pair = Pair(hosts, out, into)
        yield pair
    finally:
        for meter in () if pair and pair.busy else made:
            meter.close()
