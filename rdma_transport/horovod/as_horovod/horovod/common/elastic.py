"""``horovod.common.elastic``, the part that programs use."""

from rdma_transport.horovod.elastic import ObjectState, State

__all__ = ["ObjectState", "State"]
