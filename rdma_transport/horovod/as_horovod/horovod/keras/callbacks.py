"""``horovod.keras.callbacks``."""

from horovod.tensorflow.keras.callbacks import *  # noqa: F403
from horovod.tensorflow.keras.callbacks import __getattr__  # noqa: F401
