"""Sessions for measuring: without the optimizers, which would remove the edges to be measured."""

from typing import Any

import tensorflow as tf

v1 = tf.compat.v1


def config(cpu_devices: int = 1) -> Any:
    """A ConfigProto that runs a graph as it was written."""
    made = v1.ConfigProto(device_count={"CPU": cpu_devices})
    made.graph_options.rewrite_options.disable_meta_optimizer = True
    made.graph_options.optimizer_options.opt_level = -1
    return made
