"""``horovod.tensorflow.elastic``."""

from rdma_transport.horovod.elastic import *  # noqa: F403
from rdma_transport.horovod.elastic import __all__ as __all__
