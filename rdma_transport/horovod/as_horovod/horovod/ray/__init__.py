"""Refuses ``horovod.ray``. Programs would take an ImportError for "train serially"."""

from rdma_transport.horovod.unsupported import refuse

raise refuse("horovod.ray")
