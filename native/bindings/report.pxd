from libcpp.string cimport string

cdef extern from "protocol/report.h" namespace "rdma_transport" nogil:
    string SettingsJson()

cdef extern from "protocol/process.h" namespace "rdma_transport" nogil:
    string ProcessStatsJson()

cdef extern from "protocol/counter_table.h" namespace "rdma_transport" nogil:
    string CountersJson()

cdef extern from "fabric/verbs/survey.h" namespace "rdma_transport::fabric::verbs" nogil:
    string SurveyJson()
