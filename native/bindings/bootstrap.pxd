from libc.stdint cimport uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.string cimport string
from libcpp.string_view cimport string_view
from libcpp.vector cimport vector

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

        @staticmethod
        Status Decode(string_view data, BootstrapRequest* request)

    cdef cppclass BootstrapReply:
        uint32_t version
        Identity sender "from"
        string channel
        string refusal
        string Encode()

        @staticmethod
        Status Decode(string_view data, BootstrapReply* reply)

cdef extern from "base/secret_file.h" namespace "rdma_transport" nogil:
    Status ReadSecrets(const string& path, vector[string]* secrets, string* warning)

    cdef cppclass SecretFile:
        SecretFile(string path)

cdef extern from "protocol/handshake.h" namespace "rdma_transport" nogil:
    cdef cppclass AskingHandshake:
        AskingHandshake(SecretFile* file, string_view service)
        Status Sign(BootstrapRequest* request)
        Status Check(const BootstrapReply& reply)
        string channel_key()

    cdef cppclass AnsweringHandshake:
        AnsweringHandshake(SecretFile* file, string_view service)
        Status Check(const BootstrapRequest& request)
        string channel_key()
        void Sign(BootstrapReply* reply)

cdef extern from "protocol/wire.h" namespace "rdma_transport" nogil:
    cdef uint32_t kProtocolVersion

    cdef enum class MessageType:
        kPing
        kPong

    cdef struct ControlMessage:
        MessageType type

    MessageType TypeOf(const char* data, size_t length)
