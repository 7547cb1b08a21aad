"""Refuses ``horovod.mxnet``. Programs would take an ImportError for "train serially"."""

from rdma_transport.horovod.unsupported import refuse

raise refuse("horovod.mxnet")
