"""``horovod.tensorflow.keras.elastic``: its use raises ``NotImplementedError``."""

from typing import Any

from rdma_transport.horovod.unsupported import elastic


def __getattr__(name: str) -> Any:
    return getattr(elastic, name)
