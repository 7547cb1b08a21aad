from libc.stdint cimport uint32_t
from libcpp.string cimport string

cdef extern from "protocol/report.h" namespace "rdma_transport" nogil:
    string SettingsJson()

cdef extern from "protocol/process.h" namespace "rdma_transport" nogil:
    string ProcessStatsJson()

cdef extern from "protocol/counter_table.h" namespace "rdma_transport" nogil:
    string CountersJson()

cdef extern from "fabric/verbs/survey.h" namespace "rdma_transport::fabric::verbs" nogil:
    string SurveyJson()

cdef extern from "fabric/libfabric/survey.h" namespace "rdma_transport::fabric::libfabric" nogil:
    string LibfabricSurveyJson "rdma_transport::fabric::libfabric::SurveyJson"()

cdef extern from "memory/slot_policy.h" namespace "rdma_transport::memory" nogil:
    cdef uint32_t kSlots
