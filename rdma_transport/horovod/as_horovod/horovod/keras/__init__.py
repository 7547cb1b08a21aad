"""``horovod.keras``, which is ``horovod.tensorflow.keras``."""

from horovod.keras import callbacks, elastic  # noqa: F401
from horovod.tensorflow.keras import *  # noqa: F403
from horovod.tensorflow.keras import __getattr__  # noqa: F401
