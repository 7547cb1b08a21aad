from libc.stdint cimport uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.string cimport string
from libcpp.string_view cimport string_view

cdef extern from "base/status.h" namespace "rdma_transport" nogil:
    cdef cppclass Status:
        cbool ok()
        string message()

cdef extern from "protocol/bootstrap.h" namespace "rdma_transport" nogil:
    cdef cppclass Identity:
        string task
        uint64_t incarnation

    cdef cppclass BootstrapRequest:
        uint32_t version
        Identity sender "from"
        string channel
        string Encode()

    cdef cppclass BootstrapReply:
        uint32_t version
        Identity sender "from"
        string channel
        string refusal

        @staticmethod
        Status Decode(string_view data, BootstrapReply* reply)

cdef extern from "protocol/wire.h" namespace "rdma_transport" nogil:
    cdef uint32_t kProtocolVersion

    cdef enum class MessageType:
        kPing
        kPong

    cdef struct ControlMessage:
        MessageType type
        uint64_t value

    MessageType TypeOf(const char* data, size_t length)
