"""Batch normalization over the batches of all ranks."""

from typing import Any

import tensorflow as tf

from rdma_transport.horovod.process_sets import ProcessSet, global_process_set, group_of
from rdma_transport.tensorflow.moments import moments_of_all_ranks

keras: Any = tf.keras


class SyncBatchNormalization(keras.layers.BatchNormalization):
    """``BatchNormalization`` whose mean and variance are those of all ranks' batches."""

    def __init__(
        self, fused: bool = False, process_set: ProcessSet = global_process_set, **kwargs: Any
    ) -> None:
        if fused in (True, None):
            raise ValueError("SyncBatchNormalization cannot be fused")
        if not _is_keras3():
            kwargs["fused"] = False
        kwargs.setdefault("name", None)
        super().__init__(**kwargs)
        self._process_set = process_set

    def get_config(self) -> dict[str, Any]:
        """Return the configuration of the layer; a process set is not part of it."""
        config: dict[str, Any] = super().get_config()
        config.pop("fused", None)
        return config

    def _moments(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Keras 3 gives a mask, tf-keras the axes and whether to keep them."""
        if not self._process_set.included():
            return super()._moments(inputs, *args, **kwargs)
        group = group_of(self._process_set)
        if not _is_keras3():
            axes, keep = args[:2] if len(args) > 1 else (args[0], kwargs["keep_dims"])
            mask = args[2] if len(args) > 2 else kwargs.get("mask")
            return moments_of_all_ranks(inputs, list(axes), keep, mask, group)
        mask = args[0] if args else kwargs.get("mask")
        return moments_of_all_ranks(inputs, list(self._reduction_axes), False, mask, group)


def _is_keras3() -> bool:
    return not hasattr(keras.layers.BatchNormalization, "_calculate_mean_and_var")
