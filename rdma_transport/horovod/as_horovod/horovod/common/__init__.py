"""``horovod.common``."""
