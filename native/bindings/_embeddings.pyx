# cython: language_level=3
"""Tables of embeddings. Thin: `rdma_transport.embeddings` wraps and documents it."""

import threading

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.exc cimport PyErr_CheckSignals
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport INT64_MAX, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.vector cimport vector

from collectives cimport CallQueue, Patience, getpid
from embeddings cimport (
    CTable, ElementType, Ids, IdType, OptimizerKind, RowGradients, Shard, TableOptions,
)
from fabric cimport Code, Status

from rdma_transport._fabric import (
    FabricStateError, FabricValueError, deadline_in, error_of,
)

# The numbers of types, by their names in NumPy.
ID_TYPES = {
    "int32": <int>IdType.kInt32, "int64": <int>IdType.kInt64, "uint64": <int>IdType.kUint64,
}
TYPES = {"float32": <int>ElementType.kFloat32, "float64": <int>ElementType.kFloat64}

SGD = <int>OptimizerKind.kSgd
ADAGRAD = <int>OptimizerKind.kAdagrad
ADAM = <int>OptimizerKind.kAdam
FTRL = <int>OptimizerKind.kFtrl


include "waiting.pxi"


cdef class Array:
    """A contiguous buffer in use."""

    cdef Py_buffer view
    cdef cbool held
    cdef char* data

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef Array array_of(source, size_t nbytes, cbool writable):
    cdef Array made = Array()
    PyObject_GetBuffer(source, &made.view, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
    made.held = True
    made.data = <char*>made.view.buf
    if <size_t>made.view.len != nbytes:
        raise FabricValueError(f"an array has {made.view.len} bytes, not {nbytes}")
    return made


cdef class RawTable:
    """This rank's end of a table: key(), attach() with the keys of all ranks, then the others."""

    cdef object group  # a RawGroup, whose device is polled as long as this exists
    cdef shared_ptr[CTable] table
    cdef int owner
    cdef int number
    cdef object __weakref__

    def __init__(self, group, name: str, rows: int, dim: int, int dtype, optimizer: dict) -> None:
        cdef shared_ptr[CallQueue]* queue
        cdef TableOptions options
        cdef Status status
        capsule = group.capsule()
        queue = <shared_ptr[CallQueue]*>PyCapsule_GetPointer(capsule, b"rdma_transport.CallQueue")
        self.group = group
        self.owner = getpid()
        self.number = -1
        options.name = name.encode()
        options.rows, options.dim = rows, dim
        options.type = <ElementType>dtype
        options.optimizer.kind = <OptimizerKind><int>optimizer["kind"]
        options.optimizer.learning_rate = optimizer["learning_rate"]
        options.optimizer.epsilon = optimizer["epsilon"]
        options.optimizer.initial_accumulator = optimizer["initial_accumulator"]
        options.optimizer.beta_1 = optimizer["beta_1"]
        options.optimizer.beta_2 = optimizer["beta_2"]
        options.optimizer.l1 = optimizer["l1"]
        options.optimizer.l2 = optimizer["l2"]
        with nogil:
            status = CTable.Open(queue[0], options, &self.table)
        check(status, f"table '{name}': ")

    def __dealloc__(self):
        if not self.table:
            return
        if self.owner != getpid():  # in a forked child nothing may be destroyed
            new shared_ptr[CTable](self.table)
            return
        self.close()

    cdef CTable* opened(self) except NULL:
        if not self.table:
            raise FabricStateError("the table is closed")
        if self.owner != getpid():
            raise FabricStateError("the table belongs to the process that forked this one")
        return self.table.get()

    def key(self) -> int:
        return self.opened().shard().key()

    def local_rows(self) -> int:
        return self.opened().shard().rows()

    def slot_bytes(self) -> int:
        """Return the bytes of a row's slots."""
        return self.opened().shard().slot_bytes()

    def attach(self, keys: list, timeout) -> None:
        cdef CTable* table = self.opened()
        cdef Patience patience = patience_of(timeout)
        cdef vector[uint64_t] of_all = keys
        cdef Status status
        with nogil:
            status = table.Attach(of_all, patience)
        check(status)

    def publish(self, int number) -> None:
        self.opened()
        self.number = number
        CTable.Publish(number, self.table)

    def lookup(self, int id_type, ids, size_t count, out, timeout) -> None:
        cdef CTable* table = self.opened()
        cdef Patience patience = patience_of(timeout)
        cdef Array given = array_of(ids, count * (4 if id_type == <int>IdType.kInt32 else 8), False)
        cdef Array taken = array_of(out, count * table.row_bytes(), True)
        cdef Ids asked = ids_of(id_type, given, count)
        cdef Status status
        with nogil:
            status = table.Lookup(asked, taken.data, patience)
        check(status)

    def sum(self, int id_type, ids, size_t count, gradients) -> tuple:
        """Return unique rows as uint64, the sums of their gradients, and the rows of each owner."""
        cdef CTable* table = self.opened()
        cdef Array given = array_of(ids, count * (4 if id_type == <int>IdType.kInt32 else 8), False)
        cdef Array values = array_of(gradients, count * table.row_bytes(), False)
        cdef Ids asked = ids_of(id_type, given, count)
        cdef RowGradients made
        cdef Status status
        with nogil:
            status = table.Sum(asked, values.data, &made)
        check(status)
        return (
            (<char*>made.grouped.rows.data())[:made.grouped.rows.size() * 8],
            (<char*>made.sums.data())[:made.grouped.rows.size() * table.row_bytes()],
            list(made.grouped.counts),
        )

    def apply(self, ids, size_t count, gradients) -> None:
        """Update rows, given as uint64."""
        cdef CTable* table = self.opened()
        cdef Array given = array_of(ids, count * 8, False)
        cdef Array values = array_of(gradients, count * table.row_bytes(), False)
        cdef Ids asked = ids_of(<int>IdType.kUint64, given, count)
        cdef Status status
        with nogil:
            status = table.Apply(asked, values.data)
        check(status)

    cdef int check_range(self, uint64_t first, uint64_t count) except -1:
        cdef uint64_t rows = self.opened().shard().rows()
        if first > rows or count > rows - first:
            raise FabricValueError(f"{count} rows from row {first} on of a shard of {rows}")
        return 0

    def store(self, uint64_t first, uint64_t count, weights, slots) -> None:
        """Store rows of this rank, by their numbers here."""
        cdef Shard* shard = self.opened().shard()
        cdef Array first_array = array_of(weights, count * self.opened().row_bytes(), False)
        cdef Array second
        cdef const char* more = NULL
        self.check_range(first, count)
        if slots is not None:
            second = array_of(slots, count * shard.slot_bytes(), False)
            more = second.data
        with nogil:
            shard.Store(first, count, first_array.data, more)

    def load(self, uint64_t first, uint64_t count, weights, slots) -> None:
        """The reverse of store()."""
        cdef Shard* shard = self.opened().shard()
        cdef Array first_array = array_of(weights, count * self.opened().row_bytes(), True)
        cdef Array second
        cdef char* more = NULL
        self.check_range(first, count)
        if slots is not None:
            second = array_of(slots, count * shard.slot_bytes(), True)
            more = second.data
        with nogil:
            shard.Load(first, count, first_array.data, more)

    def draw(self, double low, double high, uint64_t seed) -> None:
        cdef Shard* shard = self.opened().shard()
        with nogil:
            shard.Draw(low, high, seed)

    def set_learning_rate(self, double rate) -> None:
        self.opened().shard().SetLearningRate(rate)

    def steps(self) -> int:
        return self.opened().shard().steps()

    def set_steps(self, uint64_t steps) -> None:
        self.opened().shard().SetSteps(steps)

    def close(self) -> None:
        cdef shared_ptr[CTable] table, none
        if self.owner != getpid():
            return
        table.swap(self.table)
        if not table:
            return
        with nogil:
            if self.number >= 0:
                CTable.Publish(self.number, none)
            table.reset()


cdef Ids ids_of(int id_type, Array given, size_t count):
    cdef Ids ids
    ids.type = <IdType>id_type
    ids.data = given.data
    ids.count = count
    return ids
