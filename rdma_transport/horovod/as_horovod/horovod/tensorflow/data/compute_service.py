"""``horovod.tensorflow.data.compute_service``."""

import tensorflow as tf

from rdma_transport.horovod.compute_service import (
    ComputeClient,
    TfDataServiceConfig,
    send_to_data_service,
    tf_data_service,
)

__all__ = ["ComputeClient", "TfDataServiceConfig", "send_to_data_service", "tf_data_service"]
tf.data.Dataset.send_to_data_service = send_to_data_service
