"""Measures the fabric alone, between two processes: bandwidth, latency and notifications by size.

The tests are those of perftest. Bandwidth is total bytes over time, with up to 128 transfers in
flight. The latency of a notification, and of a write with its notification, is half a round trip;
that of a read is a full round trip. On shared memory a transfer is one copy, which ends at once,
and each process has a processor of its own. There, memcpy() takes turns with the fabric in the same
run: between the same two buffers, and over more memory than the caches hold. Bandwidths are medians
of several rounds. After each round all bytes are compared with those sent, and differences are
counted.

usage: python -m bench.fabric SOCKET    serves the measuring process, which holds the other end
"""

import ctypes
import select
import signal
import socket
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Annotated

import typer

from rdma_transport._fabric import FabricError, Meter, UncachedCopy
from rdma_transport.json_lines import GoneError, OtherSideError, Wire

from .report import GB, Result, Row, Times, times_of
from .support import mpi, processors, python, ucx
from .support.exit import NotAvailableError, run_command
from .support.options import SHARED_MEMORY
from .support.perftest import Other
from .support.sizes import size_name
from .where import Where

STREAMED = 5  # transfers of a bandwidth per iteration of a latency
FEW = 8
WARM_UP = 20  # iterations
LARGEST_NOTE = 2**16
RATE_BYTES = 64
TIMEOUT = 20.0  # seconds, with a connected peer
BESIDE = {"mpi": "MPI", "ucx": "UCX"}
TITLE = "one-sided operations between two processes; read_lat: a round trip, other latencies: half"


def serve(wire: Wire) -> None:
    """Serve as the passive side until the other side ends."""
    try:
        wish = wire.hear()
        meter = Meter(wish["fabric"], wish["largest"])
        meter.connect(bytes.fromhex(wish["address"]), active=False)
        wire.tell(address=meter.address().hex(), device=meter.summary())
        meter.introduce(TIMEOUT)
        with processors.only(_processors(meter)[1]):
            while True:
                wish = wire.hear(3 * TIMEOUT)
                meter.serve(wish["test"], wish["nbytes"], wish["iterations"], TIMEOUT)
    except GoneError:
        return
    except (FabricError, KeyError, ValueError) as error:
        wire.tell(error=str(error) or repr(error))
        raise


def _processors(meter: Meter) -> tuple[int | None, int | None]:
    """Return that of the active side, and that of the passive side; None means any."""
    both = processors.of_each() if meter.fabric() == SHARED_MEMORY else None
    return both or (None, None)


class Bench:
    """The active side. `others` take turns with it; they are set before it measures."""

    others: Sequence[Other] = ()

    def __init__(self, wire: Wire, fabric: str, largest: int, rounds: int, most: int) -> None:
        self.wire, self.rounds, self.most = wire, rounds, most
        self.wrong: Counter[tuple[str, int]] = Counter()  # bytes, by test and size
        self.meter = Meter(fabric, largest)
        wire.tell(fabric=fabric, largest=largest, address=self.meter.address().hex())
        self.peer = wire.hear()
        self.meter.connect(bytes.fromhex(self.peer["address"]), active=True)
        self.meter.introduce(TIMEOUT)
        self.uncached = UncachedCopy(largest) if self.meter.fabric() == SHARED_MEMORY else None

    def run(self, test: str, nbytes: int, iterations: int) -> list[float]:
        """Return seconds. Prefers the error that the other process reports to its effect here."""
        self.wire.tell(test=test, nbytes=nbytes, iterations=iterations)
        try:
            with processors.only(_processors(self.meter)[0]):
                seconds, wrong = self.meter.run(test, nbytes, iterations, TIMEOUT)
        except FabricError:
            if select.select([self.wire.connection], [], [], 1)[0]:
                self.wire.hear()  # raises
            raise
        self.wrong[test, nbytes] += wrong
        return seconds

    def bandwidths(self, nbytes: int) -> dict[tuple[str, str], Callable[[int], float]]:
        """Return tests that move so many blocks of `nbytes` and return GB/s, by test and whose."""

        def rate(seconds: Callable[[int], float]) -> Callable[[int], float]:
            return lambda count: nbytes * count / seconds(count) / GB

        ours = self.meter.fabric()
        tests = {
            ("write_bw", ours): rate(lambda count: sum(self.run("write_bandwidth", nbytes, count))),
            ("read_bw", ours): rate(lambda count: sum(self.run("read_bandwidth", nbytes, count))),
        }
        if self.uncached is not None:
            uncached = self.uncached
            tests["memcpy", "cpu"] = rate(lambda count: sum(self.meter.copy(nbytes, count)))
            tests["uncached_memcpy", "cpu"] = rate(lambda count: uncached.run(nbytes, count))
        for other in self.others:
            for test in ("write_bw", "read_bw"):
                if test in other.tests:
                    tests[test, other.name] = partial(_rate, other, test, nbytes)
        return tests

    def rows(self, nbytes: int, iterations: int) -> Iterator[Row]:
        """Yield the bandwidths and the latencies of a size."""
        most, ours = max(self.most // nbytes, FEW), self.meter.fabric()
        streamed, count = min(iterations * STREAMED, most), min(iterations, most)
        moves, named = self.bandwidths(nbytes), (size_name(nbytes), nbytes)
        for move in moves.values():
            move(min(WARM_UP, streamed // 4 + 1))
        taken = [{name: move(streamed) for name, move in moves.items()} for _ in range(self.rounds)]
        rates = {name: statistics.median(each[name] for each in taken) for name in moves}
        for (test, whose), gbps in rates.items():
            row = Row(test, *named, whose, streamed, gbps=gbps, per_second=gbps * GB / nbytes)
            if whose == ours:
                wrong = self.wrong[test.replace("_bw", "_bandwidth"), nbytes]
                beside = [rates[test, each.name] for each in self.others if test in each.tests]
                row = replace(row, wrong=wrong, ratio=gbps / beside[0] if beside else None)
            yield row
        for test in ("write", "read", "notify"):
            others = {
                each.name: Times(each.measure(f"{test}_lat", nbytes, count).p50)
                for each in self.others
                if f"{test}_lat" in each.tests
            }
            if test != "notify" or nbytes <= LARGEST_NOTE:
                times, wrong = self.latency(f"{test}_latency", nbytes, count)
                ratio = next((each.p50 / times.p50 for each in others.values()), None)
                yield Row(f"{test}_lat", *named, ours, count, times, wrong=wrong, ratio=ratio)
            for name, times in others.items():
                yield Row(f"{test}_lat", *named, name, count, times)

    def latency(self, test: str, nbytes: int, iterations: int) -> tuple[Times, int]:
        """Return the times of one latency test, and wrong bytes."""
        self.run(test, nbytes, min(WARM_UP, iterations // 4 + 1))
        times = times_of([1e6 * sample for sample in self.run(test, nbytes, iterations)])
        return times, self.wrong[test, nbytes]

    def notifications(self, iterations: int) -> Row:
        """Return the number of notifications of RATE_BYTES per second."""
        count = max(iterations * STREAMED, FEW)
        self.run("notify_rate", RATE_BYTES, WARM_UP)
        rate = statistics.median(
            count / sum(self.run("notify_rate", RATE_BYTES, count)) for _ in range(self.rounds)
        )
        named = "notify_rate", size_name(RATE_BYTES), RATE_BYTES, self.meter.fabric(), count
        return Row(*named, per_second=rate, wrong=self.wrong["notify_rate", RATE_BYTES])


def _rate(other: Other, test: str, nbytes: int, count: int) -> float:
    return other.measure(test, nbytes, count).gbps


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
    options = {"iterations": iterations, "rounds": rounds, "most": most}
    for name in beside:
        if why := ucx.missing() if name == "ucx" else mpi.find_mpi()[1]:
            raise NotAvailableError(why)
    result = Result("fabric", TITLE, options, "gbps")
    with ExitStack() as stack:
        if where.others:
            wire = Wire(stack.enter_context(where.others[-1].ask("fabric")), TIMEOUT)
        else:
            wire = stack.enter_context(own_peer())
        bench = stack.enter_context(opened(wire, where.fabric, sizes, rounds, most))
        ours = bench.meter.fabric()
        if beside and ours != SHARED_MEMORY:
            raise NotAvailableError(
                f"{BESIDE[beside[0]]} is measured through shared memory, and this is {ours}. "
                "Use --fabric shm on one host"
            )
        bench.others, notes = _others(beside, stack)
        for size in where.bar.track(sizes, "measuring"):
            result.rows += bench.rows(size, iterations)
        result.rows.append(bench.notifications(iterations))
        route = {"transport": ours, "reason": bench.meter.route()}
        result.routes = [{"from": "this host", "to": "the peer"} | route]
        result.devices = [bench.meter.summary(), bench.peer["device"]]
    result.notes.append(
        "write_lat: a write with its notification. #wrong: bytes that differ after each round."
    )
    if ours == SHARED_MEMORY:
        result.notes.append("uncached_memcpy: over more memory than the caches hold.")
    result.notes += notes
    return result


def _others(beside: Sequence[str], stack: ExitStack) -> tuple[list[Other], list[str]]:
    """Return those of BESIDE, and a note about each. They end with the stack."""
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


@contextmanager
def own_peer() -> Iterator[Wire]:
    """Start a serving process on this host; end it with the context."""
    here, there = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, *python.module("fabric"), str(there.fileno())],
        pass_fds=[there.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd=python.TOP,
        process_group=0,  # Ctrl-C is for the parent, which ends it
    )
    there.close()
    try:
        with here:
            yield Wire(here, TIMEOUT)
    finally:
        process.kill()
        process.wait()


@contextmanager
def opened(
    wire: Wire, fabric: str, sizes: Sequence[int], rounds: int, most: int
) -> Iterator[Bench]:
    """Connect to the serving process; raise NotAvailableError if no fabric connects the two."""
    try:
        bench = Bench(wire, fabric, max(*sizes, RATE_BYTES), rounds, most)
    except GoneError:
        raise
    except (FabricError, OtherSideError) as error:
        raise NotAvailableError(str(error)) from error
    with closing(bench.meter):
        yield bench


def main(socket_number: Annotated[int, typer.Argument(metavar="SOCKET")]) -> None:
    """Serve the process at the other end of an open socket; `rdma-transport bench` starts this."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: not without its parent
    serve(Wire(socket.socket(fileno=socket_number), TIMEOUT))


if __name__ == "__main__":
    run_command(main)
