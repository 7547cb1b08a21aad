"""``horovod.tensorflow.keras.callbacks``."""

from rdma_transport.horovod.keras.callbacks import (
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)
from rdma_transport.horovod.unsupported import attributes_of

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
__getattr__ = attributes_of("horovod.tensorflow.keras.callbacks")
