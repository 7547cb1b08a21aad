"""mpi4py's face: real processes, with the values that mpi4py gives over OpenMPI."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.support.deadlines import patient

Script = Callable[[str], str]
RUN = [sys.executable, "-m", "rdma_transport", "run"]


def run(size: int, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*RUN, "-n", str(size), "--mpi4py", "--", sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
    )


def ran(result: subprocess.CompletedProcess, size: int) -> None:
    """All ranks came to the end of their script, where each prints this."""
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("good") == size


OBJECTS = """
    import sys
    from mpi4py import MPI
    import numpy as np
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    total = sum(range(1, size + 1))
    assert comm.bcast({"a": rank}) == {"a": 0}
    assert comm.allgather(rank) == list(range(size))
    assert comm.allreduce(rank, op=lambda a, b: a + b) == total - size
    assert comm.reduce(rank, MPI.MAX) == (size - 1 if rank == 0 else None)
    assert comm.scatter([str(i) for i in range(size)] if rank == 0 else None) == str(rank)
    assert comm.scatter(None) is None
    assert comm.gather(rank) == (list(range(size)) if rank == 0 else None)
    assert comm.alltoall([rank] * size) == list(range(size))
    after, before = (rank + 1) % size, (rank - 1) % size
    status = MPI.Status()
    request = comm.irecv(source=before, tag=4)
    sent = comm.isend([rank], after, tag=4)
    assert request and sent and request != MPI.REQUEST_NULL
    assert request.wait(status) == [before] and status.Get_tag() == 4
    sent.wait()
    assert not request and not sent and request == MPI.REQUEST_NULL and sent == request
    assert request.test(status) == (True, None) and status.source == MPI.ANY_SOURCE
    half = comm.Split(rank % 2, rank)
    half.Barrier()
    half.Free()
    assert not half and half == MPI.COMM_NULL
    again = comm.Dup()
    assert again.allreduce(1) == size and again != comm and again.name == ""
    class Mine(MPI.Intracomm):
        def __new__(cls, comm=None):
            return super().__new__(cls, comm)
        def total(self):
            return self.allreduce(self.rank)
    assert Mine(comm).total() == total - size and Mine(comm) == comm
    assert type(Mine(comm).Dup()) is Mine
    assert (comm.name, MPI.COMM_SELF.name) == ("MPI_COMM_WORLD", "MPI_COMM_SELF")
    assert comm.Split(MPI.UNDEFINED) == MPI.COMM_NULL
    assert comm.Split_type(MPI.COMM_TYPE_SHARED).size == size
    assert MPI.COMM_SELF.allreduce(5) == 5
    assert "tensorflow" not in sys.modules
    MPI.Finalize()
    print("good", MPI.Get_processor_name())
"""


@pytest.mark.parametrize("size", [1, 3])
def test_objects_and_groups(script: Script, size: int) -> None:
    ran(run(size, script(OBJECTS)), size)


ARRAYS = """
    from mpi4py import MPI
    import array
    import numpy as np
    comm, IN_PLACE = MPI.COMM_WORLD, MPI.IN_PLACE
    rank, size = comm.rank, comm.size
    total = sum(range(1, size + 1))
    ranks = np.arange(size)
    x = np.full(1000, rank + 1.0, np.float32)
    comm.Allreduce(IN_PLACE, x, op=MPI.SUM)
    assert (x == total).all()
    y = np.empty(10)
    comm.Allreduce([np.full(10, rank + 1.0), 10, MPI.DOUBLE], [y, MPI.DOUBLE], MPI.MAX)
    assert (y == size).all()
    comm.Iallreduce(None, x).Wait()
    assert (x == total * size).all()
    MPI.Request.Waitall([comm.Iallreduce(IN_PLACE, x) for _ in range(3)])
    comm.Bcast(x, root=size - 1)
    fixed = np.arange(5)
    fixed.flags.writeable = rank != 0
    comm.Bcast(fixed)
    comm.Bcast([b"abcde" if rank == 0 else bytearray(5), MPI.CHAR])
    out = np.zeros(1000, np.float32) if rank == 0 else None
    comm.Reduce(x, out, MPI.SUM, root=0)
    assert rank or (out == x * size).all()

    # Memory order counts, whatever the strides.
    whole = np.arange(size * 6.0).reshape(2, 3, size).T
    part = np.zeros((3, 2), order="F")
    comm.Scatter(whole if rank == 0 else None, part)
    assert (part.ravel("K") == np.arange(6.0) + 6 * rank).all()
    back = np.zeros((size, 3, 2), order="F")
    comm.Gather(part, back)
    assert rank or (back.ravel("K") == np.arange(size * 6.0)).all()
    try:
        comm.Send(np.zeros((4, 4))[:, 0], rank)
    except BufferError:
        pass
    else:
        raise AssertionError

    # Counts are those of one rank.
    pairs = np.full((size, 2), rank, np.int64)
    turned = np.full(2 * size + 3, -1, np.int64)
    comm.Alltoall([pairs, 2, MPI.INT64_T], [turned, 2, MPI.INT64_T])
    assert (turned[: 2 * size] == np.repeat(ranks, 2)).all() and (turned[2 * size :] == -1).all()
    comm.Alltoall(IN_PLACE, [turned, 1, "l"])
    wide = np.full(2 * size, -1, np.int64)
    wide[2 * rank : 2 * rank + 2] = rank
    comm.Allgather(IN_PLACE, [wide, 2, MPI.LONG])
    assert (wide == np.repeat(ranks, 2)).all()
    comm.Allgather([np.array([rank, 9, 9]), 1, MPI.LONG], [wide, (1, 1), MPI.LONG] if size < 2 else
                   [wide, 1, MPI.LONG])
    assert size < 2 or (wide[:size] == ranks).all()
    block = np.arange(2 * size) + rank
    comm.Reduce_scatter_block(IN_PLACE, block)
    first = 2 * rank * size + sum(ranks)
    assert (block[:2] == [first, first + size]).all()
    assert (block[2:] == np.arange(2, 2 * size) + rank).all()
    comm.Reduce_scatter_block(np.arange(size, dtype=np.int32), small := np.empty(1, np.int32))
    assert small[0] == rank * size
    request = comm.Ireduce_scatter_block(None, block := np.full(size, 1))
    request.Wait()
    assert block[0] == size

    # Parts of different sizes: rank i has i + 1 elements.
    own = np.full(rank + 1, rank)
    counts = ranks + 1
    parts = np.repeat(ranks, counts)
    for spec in ([all_parts := np.full(parts.size, -1), counts], [all_parts, counts, MPI.LONG]):
        comm.Allgatherv(own, spec)
        assert (all_parts == parts).all()
    apart = np.full(3 * size * size, -1)
    comm.Allgatherv(own, [apart, (counts, ranks * 3 * size)])
    assert all((apart[i * 3 * size :][: i + 1] == i).all() for i in range(size))
    comm.Gatherv(own, [all_parts, counts] if rank == size - 1 else None, root=size - 1)
    received = np.empty(rank + 1, np.int64)
    comm.Scatterv([parts, counts] if rank == 0 else None, received)
    assert (received == rank).all()
    sent = np.repeat(ranks, counts) + 10 * rank
    got = np.empty(size * (rank + 1), np.int64)
    comm.Alltoallv([sent, counts], [got, rank + 1])
    assert (got == np.repeat(10 * ranks + rank, rank + 1)).all()
    comm.Reduce_scatter(np.repeat(ranks, counts), received, counts)
    assert (received == rank * size).all()
    comm.Reduce_scatter(np.repeat(ranks, counts), received)

    # What a type says of the memory counts.
    floats, raw = np.arange(4.0) if rank == 0 else np.zeros(4), np.zeros(4, "i4,f4")
    comm.Bcast([floats, MPI.BYTE])
    comm.Bcast([floats, 2, MPI.BYTE])
    comm.Bcast([raw, MPI.BYTE])
    comm.Bcast(array.array("i"))
    comm.Bcast([floats, 8, MPI.INT])
    assert (floats == np.arange(4.0)).all()
    for missing in (np.zeros(2, np.longdouble), [np.zeros(2), "g"], np.array(["a"])):
        try:
            comm.Bcast(missing)
        except NotImplementedError:
            continue
        raise AssertionError(missing)
    for wrong in (raw, [floats, "float64"], [floats, 5, MPI.DOUBLE], floats.astype(">f8"), None):
        try:
            comm.Bcast(wrong)
        except (KeyError, ValueError, BufferError, TypeError):
            continue
        raise AssertionError(wrong)
    print("good")
"""


@pytest.mark.parametrize("size", [1, 3])
def test_arrays(script: Script, size: int) -> None:
    ran(run(size, script(ARRAYS)), size)


MESSAGES = """
    import threading
    from mpi4py import MPI
    import numpy as np
    comm = MPI.COMM_WORLD
    rank, size, nobody = comm.rank, comm.size, MPI.PROC_NULL
    after, before = (rank + 1) % size, (rank - 1) % size
    status = MPI.Status()
    z = np.zeros(5, np.float32)
    comm.Sendrecv(np.ones(3, np.float32), after, 5, z, before, 5, status)
    assert (z == [1, 1, 1, 0, 0]).all() and status.Get_count(MPI.FLOAT) == 3
    assert status.Get_count(MPI.DOUBLE) == MPI.UNDEFINED and status.count == 12
    z[:] = rank
    comm.Sendrecv_replace(z, after, 1, before, 1)
    assert (z == before).all()
    comm.send([], after)
    comm.recv(source=before, status=status)
    assert status.count > 0
    comm.Send([None, 0, MPI.BYTE], after)
    assert comm.recv(source=before) is None

    # Nobody
    for call in (
        lambda: comm.Recv(None, nobody, status=status),
        lambda: comm.recv(None, nobody, status=status),
        lambda: comm.Irecv(None, nobody).Wait(status),
        lambda: comm.Probe(nobody, status=status),
        lambda: comm.Iprobe(nobody, status=status),
    ):
        status.source = 7
        call()
        assert (status.source, status.tag, status.count) == (nobody, MPI.ANY_TAG, 0)
    comm.Send(None, nobody)

    # Several requests
    values = [np.zeros(1) for _ in range(4)]
    requests = [comm.Irecv(value, before, tag) for tag, value in enumerate(values)]
    requests += [comm.Isend(np.array([tag, tag]), after, 40) for tag in range(1)]
    assert MPI.Request.Waitany(requests) == 4
    comm.Barrier()
    comm.Send(np.array([2.0]), after, 2)
    assert MPI.Request.Waitany(requests, status) == 2 and status.tag == 2
    comm.Barrier()
    for tag in (0, 1, 3):
        comm.Send(np.array([float(tag)]), after, tag)
    done = []
    while (found := MPI.Request.Waitsome(requests, statuses := [])) is not None:
        done += found
        assert [each.tag for each in statuses] == found
    assert sorted(done) == [0, 1, 3] and not any(requests)
    assert MPI.Request.Waitany(requests) == MPI.UNDEFINED
    assert [value[0] for value in values] == [0, 1, 2, 3]
    assert MPI.Request.testall(requests) == (True, [None] * 5)

    # Errors have mpi4py's classes.
    def fails(call, code):
        try:
            call()
        except MPI.Exception as error:
            assert error.Get_error_class() == code == error, error
        else:
            raise AssertionError(code)
    comm.Barrier()
    request = comm.Irecv(np.zeros(1), before, 40)
    fails(lambda: MPI.Request.Waitall([request, comm.Isend(z, nobody)], statuses := []),
          MPI.ERR_IN_STATUS)
    comm.Isend(np.zeros(2), rank, 41)
    fails(lambda: comm.Recv(np.zeros(1), rank, 41), MPI.ERR_TRUNCATE)
    fails(lambda: comm.send(0, size), MPI.ERR_RANK)
    fails(lambda: comm.send(0, 0, -1), MPI.ERR_TAG)
    fails(lambda: comm.bcast(0, size), MPI.ERR_ROOT)
    fails(lambda: comm.Free(), MPI.ERR_COMM)
    fails(lambda: MPI.COMM_NULL.rank, MPI.ERR_COMM)
    fails(lambda: MPI.REQUEST_NULL.Free(), MPI.ERR_REQUEST)

    # A communicator that some have freed goes on for the others.
    for round in range(3):
        other = comm.Dup()
        if rank == size - 1:
            for target in range(size - 1):
                other.send(target, target)
        else:
            assert other.recv(source=MPI.ANY_SOURCE) == rank
        other.Free()

    # Ranks that have left send nothing more.
    if rank == 0 and size > 1:
        fails(lambda: comm.recv(source=1, tag=78), MPI.ERR_PROC_FAILED)
        assert not comm.Iprobe(1) and not comm.iprobe()

    # The first use by two threads
    threads = [threading.Thread(target=MPI.COMM_SELF.allreduce, args=(1,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("good")
"""


@pytest.mark.parametrize("size", [1, 3])
def test_messages(script: Script, size: int) -> None:
    ran(run(size, script(MESSAGES)), size)


REFUSED = """
    import numpy as np
    from mpi4py import MPI
    import mpi4py
    comm, x = MPI.COMM_SELF, np.zeros(1)
    def rename():
        comm.name = "a"
    def errors():
        mpi4py.rc.errors = "fatal"
    def module():
        import mpi4py.futures
    for name, call in {
        "MPI.Win": lambda: MPI.Win,
        "Intracomm.Scan": lambda: comm.Scan,
        "Comm.Create_cart": lambda: MPI.Comm.Create_cart,
        "Intracomm.name": rename,
        "Op.Create": lambda: MPI.Op.Create(None),
        "Op.fromhandle": lambda: MPI.Op.fromhandle,
        "Datatype.Create_vector": lambda: MPI.DOUBLE.Create_vector,
        "Request.Testany": lambda: MPI.Request.Testany,
        "Request.Cancel": lambda: MPI.Request().Cancel,
        "Status.Set_source": lambda: MPI.Status().Set_source,
        "MPI.LAND for arrays": lambda: comm.Allreduce(MPI.IN_PLACE, x, MPI.LAND),
        "a reduction of MPI.BYTE": lambda: comm.Allreduce(MPI.IN_PLACE, [x, MPI.BYTE]),
        "Split_type": lambda: comm.Split_type(1),
        "rc.errors": errors,
        "mpi4py.futures": module,
    }.items():
        try:
            call()
        except NotImplementedError as error:
            assert "does not offer" in str(error) and name in str(error), error
        else:
            raise AssertionError(name)
    assert not hasattr(MPI, "Win")
    print("good")
"""


def test_what_is_missing_is_refused_with_its_name(script: Script) -> None:
    ran(run(1, script(REFUSED)), 1)


WRONG = """
    import numpy as np
    import rdma_transport.mpi as MPI
    comm = MPI.COMM_WORLD
    good, whole = np.ones(4), np.ones((comm.size, 4))
    class Bad:
        def __reduce__(self):
            raise TypeError("it cannot be pickled")
    bad = Bad() if comm.rank == 1 else good
    bads = bad if comm.rank == 1 else whole
    op = MPI.LAND if comm.rank == 1 else MPI.SUM
    root = 5 if comm.rank == 1 else 0
    four = [4, 4]
    calls = [
        lambda: comm.Bcast(bad),
        lambda: comm.Bcast(bad, root=1),
        lambda: comm.Bcast(good, root),
        lambda: comm.Allreduce(MPI.IN_PLACE, bad),
        lambda: comm.Allreduce(MPI.IN_PLACE, good, op),
        lambda: comm.Reduce(bad, good),
        lambda: comm.Allgather(bad, whole),
        lambda: comm.Gather(bad, whole),
        lambda: comm.Scatter(whole, bad),
        lambda: comm.Scatter(whole, good, root),
        lambda: comm.Reduce_scatter_block(bads, good),
        lambda: comm.Reduce_scatter(whole, good, [4, 5] if comm.rank == 1 else None),
        lambda: comm.Alltoall(bads, whole),
        lambda: comm.Allgatherv(bad, [whole, four]),
        lambda: comm.Gatherv(bad, [whole, four]),
        lambda: comm.Scatterv([whole, four], bad),
        lambda: comm.Alltoallv([bads, four], [whole, four]),
        lambda: comm.bcast(bad, root=1),
        lambda: comm.bcast(good, root),
        lambda: comm.gather(bad),
        lambda: comm.allgather(bad),
        lambda: comm.alltoall([] if comm.rank == 1 else [1, 2]),
        lambda: comm.Ibcast(bad).Wait(),
        lambda: comm.Iallreduce(good, bad).Wait(),
        lambda: comm.Ireduce(bad, good).Wait(),
        lambda: comm.Iallgather(bad, whole).Wait(),
        lambda: comm.Ialltoall(bads, whole).Wait(),
        lambda: comm.Ireduce_scatter_block(bads, good).Wait(),
    ]
    wrong = 0
    for call in calls:
        try:
            call()
        except (MPI.Exception, TypeError, ValueError, NotImplementedError) as error:
            if comm.rank == 0:
                assert "rank 1 called" in str(error), error
            else:
                assert "rank 0 called" not in str(error), error
            wrong += 1
    assert comm.allreduce(wrong) == 2 * len(calls)
    print("good")
"""


def test_a_wrong_argument_is_an_error_on_all_ranks(script: Script) -> None:
    ran(run(2, script(WRONG)), 2)


ENDS = """
    import os, sys, time
    from mpi4py import MPI
    comm = MPI.COMM_WORLD
    comm.Barrier()
    how = sys.argv[1]
    if comm.rank == 1:
        if how == "raise":
            raise ValueError("the cause")
        if how == "exit":
            sys.exit(3)
        if how == "Abort(7)":
            comm.Abort(7)
        if how == "Abort(0)":
            comm.Abort()
        os._exit(3)
    if how.startswith("Abort"):
        time.sleep(1000)
    try:
        comm.recv(source=1)
    except MPI.Exception as error:
        assert error.Get_error_class() == MPI.ERR_PROC_FAILED
        print(error)
        raise
"""


@pytest.mark.parametrize(
    ("how", "code"), [("raise", 1), ("exit", 3), ("_exit", 3), ("Abort(7)", 7), ("Abort(0)", 0)]
)
def test_a_rank_that_ends_ends_all(script: Script, how: str, code: int) -> None:
    result = run(2, script(ENDS), how)
    assert result.returncode == code
    if how.startswith("Abort"):
        assert f"error: rank 1 called {how}; ended the other ranks" in result.stderr
    else:
        assert "[0] rank 1 is gone" in result.stdout
        assert f"error: rank 1 exited with code {code}" in result.stderr


DIES = """
    import os, signal
    from mpi4py import MPI
    import numpy as np
    comm = MPI.COMM_WORLD
    comm.Barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    def polls(done):
        while not done():
            pass
    request = comm.irecv(source=1)
    array = np.zeros(1)
    for call in (
        lambda: polls(lambda: comm.Iprobe(1)),
        lambda: polls(lambda: comm.iprobe()),
        lambda: polls(request.test),
        lambda: comm.Probe(1),
        lambda: MPI.Request.Waitany([comm.Irecv(array, 1)]),
        lambda: MPI.Request.Waitsome([comm.Irecv(array, 1)]),
        lambda: MPI.Request.waitall([comm.irecv(source=1)]),
    ):
        try:
            call()
        except MPI.Exception as error:
            assert error.Get_error_class() in (MPI.ERR_PROC_FAILED, MPI.ERR_IN_STATUS)
            assert "rank 1 is gone" in str(error)
        else:
            raise AssertionError
    print("good")
"""


def test_what_polls_notices_a_dead_rank(script: Script) -> None:
    result = run(2, script(DIES))
    assert result.returncode == 128 + 9
    assert "[0] good" in result.stdout, result.stderr
    assert "error: rank 1 ended by signal 9" in result.stderr


ABORTS = "from mpi4py import MPI; import time; MPI.COMM_WORLD.rank or int('x'); time.sleep(1000)"


def test_a_failure_under_dash_m_mpi4py_aborts() -> None:
    result = run(2, "-m", "mpi4py", "-c", ABORTS)
    assert result.returncode == 1
    assert "error: rank 0 called Abort(1); ended the other ranks" in result.stderr
    assert "ValueError: invalid literal" in result.stderr
    good = run(2, "-m", "mpi4py", "-c", "import sys; print('good', sys.argv)", "a")
    ran(good, 2)
    assert "good ['-c', 'a']" in good.stdout


LATER = """
    import mpi4py
    mpi4py.rc(initialize=False)
    from mpi4py import MPI
    assert not MPI.Is_initialized()
    try:
        MPI.COMM_WORLD.Barrier()
    except MPI.Exception as error:
        assert "MPI.Init()" in str(error)
    MPI.Init()
    MPI.COMM_WORLD.Barrier()
    MPI.Finalize()
    assert MPI.Is_finalized()
    print("good")
"""


def test_a_program_may_initialize_itself(script: Script) -> None:
    ran(run(2, script(LATER)), 2)
