"""Members of a communicator, each in a process of its own, and what they run in tests."""

import concurrent.futures
import ctypes
import functools
import gc
import multiprocessing
import multiprocessing.connection
import os
import resource
import secrets
import signal
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.support.ports import free_port
from rdma_transport.collectives import (
    Communicator,
    MessageTruncatedError,
    Ranks,
    Request,
    wait_all,
)
from rdma_transport.fabric import FabricError, FabricTimeoutError
from tests.support import fake_verbs, namespaces
from tests.support.deadlines import patient

SOON = 60.0
SOONER = {"RDMA_TRANSPORT_PEER_TIMEOUT": "3s"}
TCP = SOONER | {
    "RDMA_TRANSPORT_LIBFABRIC_PROVIDER": "tcp",
    "RDMA_TRANSPORT_LIBFABRIC_INTERFACE": "lo",
    "RDMA_TRANSPORT_LIBIBVERBS": "/nowhere/libibverbs.so.1",
}
ByHost = tuple[tuple[int, ...], ...]
ABOVE = 128 << 10  # bytes; larger arrays are combined on each host first
OPS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def settings_of(fabric: str, rank: int) -> dict[str, str]:
    """The environment of a rank over a fabric; "mixed": only ranks 0 and 1 share memory."""
    if fabric == "verbs":
        return fake_verbs.environment() | SOONER
    if fabric == "mixed":
        fabric = "auto" if rank < 2 else "libfabric"
    if fabric in ("auto", "libfabric"):
        try:
            ctypes.CDLL("libfabric.so.1")
        except OSError as error:
            pytest.skip(f"{error}: apt-get install libfabric1")
    return TCP | {"RDMA_TRANSPORT_FABRIC": fabric}


class Members:
    """Processes that run functions of this module, each with its communicator.

    With `hosts`, ranks are on them in turn, and use any fabric. `by_host` has the ranks of each
    host, if there are several hosts and several ranks on one. `target` serves as serve() does.
    """

    def __init__(
        self,
        size: int,
        fabric: str = "shm",
        hosts: "namespaces.Hosts | None" = None,
        target: Callable[..., None] | None = None,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self.size = size
        self.by_host: ByHost = ((0, 1), (2,)) if fabric == "mixed" else ()
        if hosts:
            self.by_host = in_turn(size)
        self.pipes, self.processes = [], []
        port, job = free_port(), secrets.token_hex(8)
        address = hosts.first.host if hosts else "127.0.0.1"
        for rank in range(size):
            mine, theirs = context.Pipe()
            ranks = Ranks(rank, size, address, port, job)
            settings = SOONER if hosts else settings_of(fabric, rank)
            network = hosts.both[rank % 2].network if hosts else None
            process = context.Process(
                target=target or serve, args=(theirs, ranks, settings, network), daemon=True
            )
            process.start()
            theirs.close()
            self.pipes.append(mine)
            self.processes.append(process)

    def start(self, function: Callable[..., Any], *arguments: Any, ranks: Any = None) -> None:
        for rank in range(self.size) if ranks is None else ranks:
            self.pipes[rank].send((function.__name__, arguments))

    def answers(self, ranks: Any = None, seconds: float = SOON) -> list[Any]:
        """Return results, or the exceptions as "Type: message"."""
        asked = list(range(self.size) if ranks is None else ranks)
        found: dict[int, Any] = {}
        deadline = time.monotonic() + patient(seconds)
        while len(found) < len(asked):
            assert time.monotonic() < deadline, f"of the ranks {asked}, there are only {found}"
            waiting = {self.pipes[rank]: rank for rank in asked if rank not in found}
            for pipe in multiprocessing.connection.wait(list(waiting), 0.1):
                found[waiting[pipe]] = pipe.recv()
        return [found[rank] for rank in asked]

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Run a function on all ranks, and return its results."""
        self.start(function, *arguments)
        answers = self.answers()
        wrong = [answer for answer in answers if isinstance(answer, Error)]
        assert not wrong, wrong
        return answers

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        os.kill(self.processes[rank].pid or 0, number)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


class Error(str):
    """What a function raised."""


def serve(pipe: Any, ranks: Ranks, settings: dict[str, str], network: str | None) -> None:
    os.environ.update(settings)
    if network is not None:
        namespaces.enter(network)
    with Communicator.connect(ranks, timeout=patient(SOON)) as comm:
        while True:
            try:
                name, arguments = pipe.recv()
            except (EOFError, OSError):
                return
            try:
                pipe.send(globals()[name](comm, *arguments))
            except BaseException as error:
                pipe.send(Error(f"{type(error).__name__}: {error}"))


def values(rank: int, shape: Any, dtype: str, seed: int) -> Any:
    """The array of a rank: every rank can compute those of all."""
    return np.asarray(_values(rank, shape, dtype, seed))


def _values(rank: int, shape: Any, dtype: str, seed: int) -> Any:
    random = np.random.default_rng((seed, rank))
    if dtype == "bfloat16":
        import ml_dtypes

        return np.asarray(random.standard_normal(shape)).astype(ml_dtypes.bfloat16)
    kind = np.dtype(dtype)
    if kind.kind == "c":
        return (random.standard_normal(shape) + 1j * random.standard_normal(shape)).astype(kind)
    if kind.kind == "f":
        return np.asarray(random.standard_normal(shape)).astype(kind)
    return np.asarray(random.integers(0, 2 if kind.kind == "b" else 120, shape)).astype(kind)


def combined(arrays: list[Any], op: str) -> Any:
    """What NumPy computes, in the order of ranks; types of 16 bits in float32."""
    kind = arrays[0].dtype
    if kind.itemsize == 2 and kind.name.endswith("float16"):
        arrays = [array.astype(np.float32) for array in arrays]
    with np.errstate(all="ignore"):
        return np.asarray(functools.reduce(OPS[op], arrays)).astype(kind)


def same(ours: Any, theirs: Any) -> None:
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if ours.dtype.kind == "c":
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    else:
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert ours.tobytes() == theirs.tobytes(), (ours, theirs)


def target(comm: Communicator, like: Any, where: str) -> Any:
    if where == "new":
        return None
    registered = where in ("registered", f"registered by rank {comm.rank}")
    made = comm.empty(like.shape, like.dtype) if registered else np.empty_like(like)
    made[...] = like
    return made


def in_turn(size: int) -> ByHost:
    """The ranks of two hosts that have them in turn."""
    return (tuple(range(0, size, 2)), tuple(range(1, size, 2)))


def by_host(arrays: list[Any], op: str, hosts: ByHost) -> Any:
    """What NumPy computes if each host combines its arrays first."""
    if not hosts:
        return combined(arrays, op)
    return combined([combined([arrays[rank] for rank in host], op) for host in hosts], op)


def reduction(
    comm: Communicator, shape: Any, dtype: str, op: str, where: str, seed: int, hosts: ByHost = ()
) -> bytes:
    """All-reduce and reduce-scatter against NumPy; return the bits of the result.

    `hosts`: as in ``Members``. On hosts with different numbers of ranks, only the all-reduce
    combines on each host first.
    """
    arrays = [values(rank, shape, dtype, seed) for rank in range(comm.size)]
    hosts = hosts if arrays[0].nbytes > ABOVE else ()
    even = hosts if len({len(host) for host in hosts}) == 1 else ()
    expected = by_host(arrays, op, hosts)
    mine = arrays[comm.rank]
    if where == "in place" or where == "registered":
        mine = target(comm, mine, where)
        result = comm.all_reduce(mine, op, out=mine)
        assert result is mine
    else:
        result = comm.all_reduce(mine, op, out=target(comm, mine, where))
    same(result, expected)
    parts = [values(rank, (comm.size, *shape), dtype, seed + 1) for rank in range(comm.size)]
    part = comm.reduce_scatter(parts[comm.rank], op)
    same(part, by_host(parts, op, even)[comm.rank])
    return result.tobytes()


def moves(
    comm: Communicator, shape: Any, dtype: str, root: int, seed: int, where: str = "other"
) -> None:
    """The collectives that move data, against NumPy; `where`: as in ``target()``."""
    arrays = [values(rank, shape, dtype, seed) for rank in range(comm.size)]
    mine = target(comm, arrays[comm.rank], where)
    whole = comm.all_gather(mine)
    same(whole, np.stack(arrays))
    whole[...] = np.zeros((), whole.dtype)
    whole[comm.rank] = mine
    comm.all_gather(whole[comm.rank], out=whole)
    same(whole, np.stack(arrays))
    same(comm.broadcast(mine, root % comm.size), arrays[root % comm.size])
    parts = [values(rank, (comm.size, *shape), dtype, seed + 1) for rank in range(comm.size)]
    pieces = target(comm, parts[comm.rank], where)
    received = comm.all_to_all(pieces)
    same(received, np.stack([part[comm.rank] for part in parts]))
    if not dtype.startswith("complex"):
        expected = combined(parts, "max")[comm.rank]
        same(comm.reduce_scatter(pieces, "max"), expected)
        if len(shape) > 0:  # otherwise, the part is no view
            same(comm.reduce_scatter(pieces, "max", out=pieces[comm.rank]), expected)
        pieces[...] = parts[comm.rank]
    same(comm.all_to_all(pieces, out=pieces), received)
    comm.barrier()


def rooted(comm: Communicator, shape: Any, dtype: str, root: int, seed: int) -> None:
    """Gather, scatter and reduce against NumPy, and pieces of different sizes."""
    size, rank, root = comm.size, comm.rank, root % comm.size
    arrays = [values(each, shape, dtype, seed) for each in range(size)]
    gathered = comm.gather(arrays[rank], root)
    out = np.empty(0, arrays[0].dtype)
    if rank == root:
        same(gathered, np.stack(arrays))
        gathered[:] = 0
        gathered[root] = arrays[root]
        same(comm.gather(gathered[root, ...], root, out=gathered), np.stack(arrays))
        same(comm.scatter(gathered, gathered[root, ...], root), arrays[root])
    else:
        assert gathered is None
        comm.gather(arrays[rank], root)
        out = np.empty_like(arrays[rank])
        same(comm.scatter(None, out, root), arrays[rank])
    reduced = comm.reduce(arrays[rank], "sum", root)
    assert (reduced is None) == (rank != root)
    # All parts have the same bits as of an all-reduce.
    whole = comm.all_reduce(arrays[rank])
    if rank == root:
        same(reduced, whole)
    sent = arrays[rank].copy()
    sent.flags.writeable = rank != root
    same(comm.broadcast(sent, root), arrays[root])
    parts = [arrays[rank].reshape(-1)[: (rank + 1) * (to + 1)] for to in range(size)]
    outs = [
        np.empty_like(arrays[each].reshape(-1)[: (each + 1) * (rank + 1)]) for each in range(size)
    ]
    request = comm.start_exchange(parts, outs)
    request.wait()
    for each, found in enumerate(outs):
        same(found, arrays[each].reshape(-1)[: (each + 1) * (rank + 1)])
    if arrays[rank].dtype.kind not in "biu":
        mean = np.empty_like(arrays[rank])
        assert comm.start_all_reduce(arrays[rank], "mean", out=mean).wait() is mean
        with np.errstate(all="ignore"):
            same(mean, np.asarray(whole / whole.dtype.type(size)))
        same(comm.all_reduce(arrays[rank], "mean"), mean)


def moves_no_more_than_needed(comm: Communicator) -> int:
    """Scatter and gather much; return the bytes that this rank's memory has grown by at most."""
    part = np.ones(4 << 20, np.uint8)
    whole = np.ones((comm.size, part.size), np.uint8) if comm.rank == 0 else None
    comm.barrier()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(3):
        comm.scatter(whole, part)
        comm.gather(part, out=whole)
        comm.reduce(part, out=part if comm.rank == 0 else None)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


def requests(comm: Communicator, count: int) -> None:
    """Many collectives at once, finished in order."""
    arrays = [np.full(10 + 5000 * i, comm.rank + i, np.int64) for i in range(count)]
    started = [comm.start_all_reduce(array, out=array) for array in arrays]
    blocking = comm.all_reduce(np.ones(3))
    assert all(request.test() for request in started)
    gathered = comm.start_all_gather(np.array([comm.rank]))
    wait_all([*started, comm.start_barrier()], SOON)
    np.testing.assert_array_equal(blocking, comm.size)
    ranks = np.arange(comm.size)
    for i, array in enumerate(arrays):
        np.testing.assert_array_equal(array, ranks.sum() + i * comm.size)
    np.testing.assert_array_equal(gathered.wait(patient(SOON))[:, 0], ranks)
    value = np.array([comm.rank])
    assert comm.start_broadcast(value, 1).wait(patient(SOON)) is value
    assert value[0] == 1
    comm.start_all_reduce(np.zeros(100_000))  # dropped: its array lives on
    comm.start_all_to_all(np.zeros((comm.size, 4))).wait(patient(SOON))
    comm.start_reduce_scatter(np.zeros((comm.size, 4))).wait(patient(SOON))


def python_objects(comm: Communicator) -> None:
    large = {"rank": comm.rank, "data": os.urandom(5000)}
    assert comm.broadcast_object("x" if comm.rank == 1 else None, 1) == "x"
    assert comm.broadcast_object(large, 0)["rank"] == 0
    gathered = comm.all_gather_object(large if comm.rank else "small")
    assert gathered[0] == "small"
    assert [each["rank"] for each in gathered[1:]] == list(range(1, comm.size))
    assert all(len(each["data"]) == 5000 for each in gathered[1:])
    root = comm.size - 1
    found = comm.gather_object((comm.rank, large["data"]), root)
    if comm.rank == root:
        assert found is not None
        assert [each[0] for each in found] == list(range(comm.size))
        assert [len(each[1]) for each in found] == [5000] * comm.size
    given = [f"for {rank}" * rank for rank in range(comm.size)] if comm.rank == root else None
    assert comm.scatter_object(given, root) == f"for {comm.rank}" * comm.rank
    sent = [(comm.rank, to, "x" * 3000 * to) for to in range(comm.size)]
    expected = [(source, comm.rank, "x" * 3000 * comm.rank) for source in range(comm.size)]
    assert comm.all_to_all_objects(sent) == expected


def messages(comm: Communicator) -> None:
    """A ring, out of order, of arrays and objects."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    large = np.arange(1 << 20, dtype=np.float64) + comm.rank
    comm.start_send(large, after, tag=1)
    comm.send(b"", after, tag=2)
    comm.send_object({"from": comm.rank}, after, tag=3)
    assert comm.recv_object(before, 3) == ({"from": before}, before, 3)
    out = np.empty_like(large)
    first, second = comm.start_recv(out, before, 1), comm.start_recv(bytearray(0), -1, -1)
    assert second.wait(patient(SOON)) == (before, 2, 0)
    assert first.wait(patient(SOON)) == (before, 1, large.nbytes)
    np.testing.assert_array_equal(out, large - comm.rank + before)
    for number in range(3):
        comm.send(np.array([number]), after, 7)
    got = [np.zeros(1, np.int64) for _ in range(3)]
    wait_all(reversed([comm.start_recv(each, before, 7) for each in got]), SOON)
    assert [int(each[0]) for each in got] == [0, 1, 2]
    comm.send(np.zeros(4), comm.rank, 9)
    assert comm.wait_for_message(comm.rank, 9) == comm.probe(tag=9) == (comm.rank, 9, 32)
    assert comm.recv(np.zeros(4), comm.rank, 9) == (comm.rank, 9, 32)
    assert comm.probe(comm.rank, 9) is None
    comm.send(np.zeros(3), after, 10)
    with pytest.raises(MessageTruncatedError, match="24 bytes, and the array has only 16"):
        comm.recv(np.zeros(2), before, 10)


def rivals(comm: Communicator, rounds: int) -> None:
    """Receives that match the same messages: each gets one, in the order of their start."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    first, second = np.zeros(1, np.int64), np.zeros(1, np.int64)
    started = comm.start_recv(first, -1, 7)
    sends = [comm.start_send(np.array([number]), after, 7) for number in (1, 2)]
    comm.recv(second, before, 7)
    assert started.wait(patient(SOON)) == (before, 7, 8)
    assert started.test()
    assert started.wait() == (before, 7, 8)
    assert (first[0], second[0]) == (1, 2)
    wait_all(sends, patient(SOON))
    comm.timeout = patient(SOON)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        got = [pool.submit(_receive_objects, comm, before, rounds) for _ in range(2)]
        for number in range(2 * rounds):
            comm.send_object(number, after, 8)
        numbers = sorted(number for each in got for number in each.result())
    comm.timeout = None
    assert numbers == list(range(2 * rounds))
    comm.barrier()


def _receive_objects(comm: Communicator, source: int, count: int) -> list[int]:
    return [comm.recv_object(source, 8)[0] for _ in range(count)]


def late_messages(comm: Communicator) -> None:
    """All but two ranks close. Rank 0 receives what they sent before, then from rank 1."""
    part = comm.split(0)
    assert part is not None
    large = np.full(3 << 20, comm.rank, np.uint8)
    if comm.rank > 1:
        part.start_send(large, 0, 5)
        part.close()
    comm.barrier()
    if comm.rank == 0:
        out = np.zeros_like(large)
        for source in range(2, comm.size):
            assert part.recv(out, source, 5) == (source, 5, large.nbytes)
            assert (out == source).all()
        request = part.start_recv(out)
        assert not request.test()
        comm.barrier()
        assert request.wait(patient(SOON)) == (1, 6, 8)
    else:
        comm.barrier()
        if comm.rank == 1:
            part.send(np.zeros(1), 0, 6)
    part.close()


def splits(comm: Communicator) -> None:
    half = comm.split(comm.rank % 2, key=-comm.rank)
    assert half is not None
    members = [rank for rank in range(comm.size) if rank % 2 == comm.rank % 2]
    assert half.size == len(members)
    assert half.rank == members[::-1].index(comm.rank)
    assert half.all_reduce(np.array([comm.rank]))[0] == sum(members)
    again = half.split(0)
    assert again is not None
    again.barrier()
    again.close()
    none = comm.split(None if comm.rank == 0 else 0)
    assert (none is None) == (comm.rank == 0)
    half.close()
    comm.barrier()


def wrong(comm: Communicator, kind: str, guilty: int) -> None:
    """One rank calls something else; all must get an error."""
    mine = comm.rank == guilty
    array = np.zeros(3000 if mine and kind == "size" else 200_000, np.float32)
    op = "max" if mine and kind == "op" else "sum"
    if mine and kind == "dtype":
        array = array.astype(np.int32)
    if mine and kind == "strided":
        array = np.zeros(400_000, np.float32)[::2]
    if mine and kind == "read-only":
        array.flags.writeable = False
    if mine and kind == "byte order":
        array = array.astype(">f4")
    if mine and kind == "object":
        array = np.array([None])
    if mine and kind == "unknown op":
        op = "xor"
    if mine and kind == "overlap":
        comm.all_reduce(array[:-1], out=array[1:])
    elif mine and kind == "collective":
        comm.broadcast(array)
    elif mine and kind == "sizes":
        comm.all_reduce(array, out=array[:5])
    elif kind == "piece":
        parts = [array[: 5 if mine and to != comm.rank else 4] for to in range(comm.size)]
        comm.exchange(parts, [np.empty(4, np.float32) for _ in parts])
    elif mine and kind == "no array":
        comm.scatter(None, None, root=(comm.rank + 1) % comm.size)
    else:
        comm.all_reduce(array, op, out=array)


def sums(comm: Communicator) -> int:
    return int(comm.all_reduce(np.array([1]))[0])


def waits(comm: Communicator, call: str, timeout: float | None = None) -> None:
    """Wait for something that does not come."""
    comm.timeout = timeout
    array = np.zeros(500_000)
    {
        "barrier": comm.barrier,
        "all_reduce": lambda: comm.all_reduce(array, out=array),
        "request": lambda: comm.start_all_reduce(array, out=array).wait(patient(SOON)),
        "recv": lambda: comm.recv(array, (comm.rank + 1) % comm.size),
        "recv any": lambda: comm.recv(array),
        "test": lambda: polls(comm.start_recv(array, (comm.rank + 1) % comm.size)),
        "probe": lambda: polls_for_message(comm, (comm.rank + 1) % comm.size),
        "wait_for_message": lambda: comm.wait_for_message((comm.rank + 1) % comm.size),
        "send": lambda: comm.send(np.zeros(10 << 20), (comm.rank + 1) % comm.size),
    }[call]()


def polls(request: Request) -> None:
    while not request.test():
        time.sleep(0.001)
    request.wait()


def polls_for_message(comm: Communicator, source: int) -> None:
    while comm.probe(source) is None:
        time.sleep(0.001)


def reduces_forever(comm: Communicator) -> None:
    array = np.zeros(1 << 20)
    while True:
        comm.all_reduce(array, out=array)


def sends_forever(comm: Communicator) -> None:
    """Exchange messages with another rank, most of which lie where they are until they are read."""
    mine, got = np.ones(1 << 21), np.zeros(1 << 21)
    while True:
        sends = [comm.start_send(mine, 1 - comm.rank) for _ in range(4)]
        for _ in sends:
            comm.recv(got)
            assert (got == 1).all()
        wait_all(sends)


def leaves(comm: Communicator) -> None:
    comm.close()
    comm.close()


def ranks_of_this_host(comm: Communicator) -> int:
    """The size of mpi4py's communicator of ranks that share memory."""
    from rdma_transport.mpi.comm import Handle, Intracomm

    shared = Intracomm._of(Handle(comm)).Split_type(0)
    size = shared.size
    assert shared.allreduce(1) == size
    shared.Free()
    return size


def sums_and_leaves(comm: Communicator) -> None:
    for _ in range(10):
        half = comm.split(0)
        assert half is not None
        assert half.all_reduce(np.array([1]))[0] == comm.size
        half.close()


def cpu_seconds(comm: Communicator) -> float:
    """Wait in a barrier, and return the processor time that took."""
    before = sum(os.times()[:2])
    comm.barrier()
    return sum(os.times()[:2]) - before


def collective_threads() -> list[str]:
    names = [task.read_text() for task in Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if name.startswith("rdma_collective")]


def closes_during_a_request(comm: Communicator) -> None:
    """Close while a request waits for the other ranks: afterwards, nothing uses its array."""
    group = comm.split(0)
    assert group is not None
    kept = group.empty(1000)  # outlives the group
    array = np.zeros(1 << 20)
    request = group.start_all_reduce(array, out=array)
    group.close()
    assert request.test()
    assert collective_threads() == []
    assert kept.sum() == 0
    with pytest.raises(FabricError):
        request.wait()


def drops_a_request(comm: Communicator) -> None:
    """Drop a communicator that waits for the other ranks, by the garbage collector."""
    group = comm.split(0)
    assert group is not None
    arrays = [np.zeros(1 << 20) for _ in range(2)]
    threads: list[list[str]] = []
    watches = [
        weakref.ref(array, lambda _: threads.append(collective_threads())) for array in arrays
    ]
    group.start_all_reduce(arrays[0], out=arrays[0])
    group.start_recv(arrays[1])
    cycle = [group]
    cycle.append(cycle)  # type: ignore[arg-type]
    del arrays, group, cycle
    gc.collect()
    assert [watch() for watch in watches] == [None, None]
    assert threads == [[], []], "an array was freed while a thread could use it"


def keeps_what_is_in_use(comm: Communicator) -> None:
    """Drop all requests of receives: the arrays of those that can still get a message stay."""
    group = comm.split(0)
    assert group is not None
    arrays = [np.zeros(1) for _ in range(3000)]
    watches = [weakref.ref(array) for array in arrays]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda array: group.start_recv(array, comm.rank, 1) and None, arrays))
    del arrays
    gc.collect()
    assert all(watch() is not None for watch in watches)
    group.close()


def keeps_no_more(comm: Communicator) -> None:
    """Drop requests that are done, and give up receives: their arrays are not kept for long."""
    group = comm.split(0)
    assert group is not None
    watches = []
    for tag in range(10):
        array = np.zeros(1)
        watches.append(weakref.ref(array))
        group.start_recv(array, comm.rank, tag)
        group.send(array, comm.rank, tag)
    group.timeout = 0.001
    for tag in range(10):
        array = np.zeros(1)
        watches.append(weakref.ref(array))
        with pytest.raises(FabricTimeoutError):
            group.recv(array, comm.rank, tag)
    del array
    gc.collect()
    assert sum(watch() is not None for watch in watches) <= 2
    group.close()


def only_splits(comm: Communicator) -> None:
    kept.append(comm.split(0))


kept: list[Any] = []
