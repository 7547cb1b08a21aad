"""``horovod.keras.elastic``: its use raises ``NotImplementedError``."""

from rdma_transport.horovod.unsupported import elastic

__getattr__ = elastic.__getattr__
