from libcpp.string cimport string

cdef extern from "protocol/report.h" namespace "rdma_transport" nogil:
    string StatsJson()
    string SettingsJson()
