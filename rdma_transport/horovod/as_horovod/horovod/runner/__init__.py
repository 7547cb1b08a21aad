"""``horovod.runner``."""
