"""``horovod.tensorflow.keras.elastic``."""

from rdma_transport.horovod.keras.elastic import *  # noqa: F403
from rdma_transport.horovod.keras.elastic import __all__ as __all__
