"""``horovod.tensorflow.data``."""
