from libc.stdint cimport int64_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr, unique_ptr
from libcpp.string cimport string
from libcpp.string_view cimport string_view
from libcpp.vector cimport vector

from fabric cimport FabricDevice, Helper, Status

cdef extern from "collectives/types.h" namespace "rdma_transport::collectives" nogil:
    cdef enum class DType:
        pass
    cdef enum class ReduceOp:
        pass
    cdef enum class Collective:
        kBarrier
        kAllReduce
        kReduceScatter
        kAllGather
        kBroadcast
        kAllToAll
        kGather
        kScatter
        kReduce
        kExchange
        kInvalid
    size_t SizeOf(DType dtype)
    const char* NameOfDType "rdma_transport::collectives::NameOf"(DType dtype)
    const int kDTypes

cdef extern from "collectives/algorithm.h" namespace "rdma_transport::collectives" nogil:
    string Protocol()

cdef extern from "collectives/progress.h" namespace "rdma_transport::collectives" nogil:
    cdef cppclass Patience:
        int64_t deadline
        cbool (*interrupted)()

cdef extern from "collectives/letter.h" namespace "rdma_transport::collectives" nogil:
    cdef cppclass Envelope:
        int source
        int tag
        uint64_t length

    cdef cppclass Receive:
        Envelope message
        char* buffer

cdef extern from "collectives/message_request.h" namespace "rdma_transport::collectives" nogil:
    cdef cppclass MessageRequest:
        cbool Test()
        Status Wait(const Patience& patience)
        cbool Cancel()
        Receive* receive()

cdef extern from "collectives/mesh.h" namespace "rdma_transport::collectives" nogil:
    cdef cppclass Mesh:
        @staticmethod
        Status Open(shared_ptr[FabricDevice] device, int rank, int size, int64_t peer_timeout,
                    unique_ptr[Mesh]* mesh)
        void PollWhileWaiting(Helper helper)
        string Address(int peer)
        Status Connect(int peer, const string& address, const string& key)
        Status WaitReady(const Patience& patience)
        Status Share(uint64_t key, uint64_t length)
        void Withdraw(uint64_t key)
        Status Send(int peer, int tag, string_view bytes, cbool waits,
                    shared_ptr[MessageRequest]* request)
        Status Receive(int source, int tag, char* buffer, uint64_t capacity,
                       shared_ptr[MessageRequest]* request)
        Status Probe(int source, int tag, const Patience* patience, cbool* found,
                     Envelope* envelope)
        Status Drain(cbool (*interrupted)())

cdef extern from "collectives/group.h" namespace "rdma_transport::collectives" nogil:
    cdef cppclass Parcel:
        const char* source "from"
        char* to
        uint64_t sent
        uint64_t received

    cdef cppclass Call:
        Collective collective
        DType dtype
        ReduceOp op
        int root
        uint64_t count
        const char* input
        char* output
        vector[Parcel] pieces

    cdef cppclass Group:
        Group(unique_ptr[Mesh] mesh, int64_t spin)

cdef extern from "collectives/call_queue.h" namespace "rdma_transport::collectives" nogil:
    cdef cppclass Request:
        cbool done()
        Status Wait(const Patience& patience, cbool* waits)

    cdef cppclass CallQueue:
        CallQueue(unique_ptr[Group] group)
        Mesh* mesh()
        unique_ptr[Group] TakeGroup()
        Status Run(const Call& call, const Patience& patience)
        shared_ptr[Request] Start(const Call& call, int64_t deadline)
        void Close(const string& reason)

cdef extern from "collectives/named_calls.h" namespace "rdma_transport::collectives" nogil:
    cdef cppclass NamedOptions:
        vector[int] ranks
        int64_t stall_warning
        int64_t stall_timeout

    cdef cppclass NamedCalls:
        NamedCalls(unique_ptr[Group] group, NamedOptions options)
        Mesh* mesh()
        void Close(const string& reason)
        @staticmethod
        void Publish(int number, shared_ptr[NamedCalls] calls)
        @staticmethod
        shared_ptr[NamedCalls] Find(int number)

cdef extern from "<unistd.h>" nogil:
    int getpid()

cdef extern from "<utility>" namespace "std" nogil:
    unique_ptr[Mesh] move_mesh "std::move"(unique_ptr[Mesh])
    unique_ptr[Group] move_group "std::move"(unique_ptr[Group])
