"""``horovod.common.exceptions``, the part that programs use."""

from rdma_transport.errors import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]
