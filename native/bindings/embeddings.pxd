from libc.stdint cimport uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.string cimport string
from libcpp.vector cimport vector

from collectives cimport CallQueue, Patience
from fabric cimport Status

cdef extern from "embeddings/optimizer.h" namespace "rdma_transport::embeddings" nogil:
    cdef enum class ElementType:
        kFloat32
        kFloat64

    cdef enum class OptimizerKind:
        kSgd
        kAdagrad
        kAdam
        kFtrl

    cdef cppclass Optimizer:
        OptimizerKind kind
        double learning_rate
        double epsilon
        double initial_accumulator
        double beta_1
        double beta_2
        double l1
        double l2

cdef extern from "embeddings/ids.h" namespace "rdma_transport::embeddings" nogil:
    cdef enum class IdType:
        kInt32
        kInt64
        kUint64

    cdef cppclass Ids:
        IdType type
        const void* data
        size_t count

    cdef cppclass Grouped:
        vector[uint64_t] rows
        vector[uint64_t] counts

cdef extern from "embeddings/shard.h" namespace "rdma_transport::embeddings" nogil:
    cdef cppclass Shard:
        uint64_t rows()
        uint64_t key()
        size_t slot_bytes()
        void Store(uint64_t first, uint64_t count, const char* weights, const char* slots)
        void Load(uint64_t first, uint64_t count, char* weights, char* slots)
        void Draw(double low, double high, uint64_t seed)
        void SetLearningRate(double rate)
        uint64_t steps()
        void SetSteps(uint64_t steps)

cdef extern from "embeddings/table.h" namespace "rdma_transport::embeddings" nogil:
    cdef cppclass TableOptions:
        string name
        uint64_t rows
        uint64_t dim
        ElementType type
        Optimizer optimizer

    cdef cppclass RowGradients:
        Grouped grouped
        vector[double] sums

    cdef cppclass CTable "rdma_transport::embeddings::Table":
        @staticmethod
        Status Open(shared_ptr[CallQueue] group, const TableOptions& options,
                    shared_ptr[CTable]* table)
        Status Attach(const vector[uint64_t]& keys, const Patience& patience)
        size_t row_bytes()
        Shard* shard()
        Status Lookup(const Ids& ids, char* out, const Patience& patience)
        Status Sum(const Ids& ids, const char* gradients, RowGradients* made)
        Status Apply(const Ids& ids, const char* gradients)
        @staticmethod
        void Publish(int number, shared_ptr[CTable] table)
