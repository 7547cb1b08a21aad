from libc.stdint cimport uint64_t
from libcpp cimport bool as cbool
from libcpp.string cimport string
from libcpp.string_view cimport string_view
from libcpp.vector cimport vector

cdef extern from "base/status.h" namespace "rdma_transport" nogil:
    cdef cppclass Status:
        cbool ok()
        string message()

cdef extern from "analyzer/plan.h" namespace "rdma_transport::analyzer" nogil:
    cdef cppclass Plan:
        pass
    string PlanJson(const Plan& plan)

cdef extern from "analyzer/placement.h" namespace "rdma_transport::analyzer" nogil:
    cdef cppclass Limits:
        uint64_t arena_bytes
        uint64_t inline_bytes

cdef extern from "analyzer/whole_graph.h" namespace "rdma_transport::analyzer" nogil:
    cdef cppclass Request:
        vector[string] tasks
        string default_device
        Limits limits
    Status Analyze(string_view graph_def, const Request& request, Plan* plan)
