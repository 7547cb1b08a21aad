from libc.stdint cimport int64_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr, unique_ptr
from libcpp.string cimport string
from libcpp.string_view cimport string_view
from libcpp.vector cimport vector

cdef extern from "base/clock.h" namespace "rdma_transport" nogil:
    int64_t Now()

cdef extern from "base/status.h" namespace "rdma_transport" nogil:
    cdef enum class Code:
        kInvalidArgument
        kDeadlineExceeded
        kNotFound
        kPermissionDenied
        kResourceExhausted
        kCancelled
        kAborted
        kUnavailable
        kDataLoss

    cdef cppclass Status:
        cbool ok()
        Code code()
        string message()

cdef extern from "base/settings.h" namespace "rdma_transport" nogil:
    cdef cppclass Settings:
        pass

cdef extern from "fabric/fabric.h" namespace "rdma_transport::fabric" nogil:
    cdef enum class Role:
        kActive
        kPassive

    cdef cppclass FabricDevice "rdma_transport::fabric::Device":
        string Summary()

cdef extern from "fabric/registry.h" namespace "rdma_transport::fabric" nogil:
    cdef cppclass Registration:
        const char* name
        const char* description

    vector[Registration] Fabrics()

cdef extern from *:
    # Polls instead of the polling thread, for a thread that waits.
    cdef cppclass Helper "std::function<void(const std::function<bool()>&)>":
        pass

cdef extern from "bindings/polling_thread.h" namespace "rdma_transport::bindings" nogil:
    Status OpenFabric(const string& name, Settings* settings, unique_ptr[FabricDevice]* device)

    cdef cppclass Memory:
        char* data()
        size_t length()
        uint64_t key()
        cbool writable()
        cbool Ours()

    cdef cppclass Transfer:
        pass

    cdef cppclass BlockingChannel:
        Status Address(string* address)
        Status Connect(const string& peer_address, cbool active, const string& key)
        string FabricName()
        string Route()
        Status WaitConnected(int64_t deadline)
        Status Wait(const shared_ptr[Transfer]& transfer, int64_t deadline)
        Status Receive(int64_t deadline, string* note)
        cbool Done(const shared_ptr[Transfer]& transfer)
        Status Share(const shared_ptr[Memory]& memory)
        Status WaitRemote(uint64_t key, const shared_ptr[Memory]& scratch, int64_t deadline)
        Status Start(cbool write, const shared_ptr[Memory]& memory, uint64_t at, uint64_t key,
                     uint64_t offset, uint64_t length, shared_ptr[Transfer]* transfer)
        cbool Copy(cbool write, const shared_ptr[Memory]& memory, uint64_t at, uint64_t key,
                   uint64_t offset, uint64_t length)
        Status Notify(string_view note)
        void Close(const string& reason)

    int64_t StartTimeout()

    cdef cppclass PollingThread:
        @staticmethod
        Status Open(const string& fabric, shared_ptr[PollingThread]* thread)
        const string& summary()
        int64_t spin()
        @staticmethod
        Helper Help "Helper"(const shared_ptr[PollingThread]& thread)
        int64_t peer_timeout()
        int64_t stall_warning()
        int64_t stall_timeout()
        Status Device(shared_ptr[FabricDevice]* device)
        Status Allocate(size_t length, cbool writable_by_peers, shared_ptr[Memory]* memory)
        Status OpenChannel(shared_ptr[BlockingChannel]* channel)
        Status Scratch(shared_ptr[Memory]* memory)
        void Close()

cdef extern from "fabric/measure.h" namespace "rdma_transport::fabric" nogil:
    cdef enum class Test:
        kNotifyLatency
        kWriteLatency
        kReadLatency
        kWriteBandwidth
        kReadBandwidth
        kNotifyRate
        kOrder

    cdef cppclass Plan:
        Test test
        uint64_t bytes
        uint64_t iterations
        uint64_t window
        int64_t timeout
        int64_t duration

    cdef cppclass Measured:
        vector[int64_t] samples
        int64_t elapsed
        uint64_t wrong

    cdef cppclass Found:
        uint64_t notes
        uint64_t writes
        uint64_t bytes
        uint64_t early
        uint64_t corrupt
        uint64_t misordered
        uint64_t repeated
        uint64_t missing
        string first

    cdef cppclass CMeter "rdma_transport::fabric::Meter":
        @staticmethod
        Status Open(FabricDevice* device, uint64_t largest, shared_ptr[CMeter]* meter)
        string Address()
        Status Connect(string_view peer_address, Role role, string key)
        Status Introduce(int64_t timeout)
        const char* fabric()
        string Route()
        void Close()
        Status Run(const Plan& plan, Measured* measured)
        Status Serve(const Plan& plan)
        Status Copy(const Plan& plan, Measured* measured)
        const Found& found()


cdef extern from "fabric/uncached_copy.h" namespace "rdma_transport::fabric" nogil:

    cdef cppclass CUncachedCopy "rdma_transport::fabric::UncachedCopy":
        Status Allocate(uint64_t largest)
        Status Run(uint64_t bytes, uint64_t times, int64_t* elapsed)
