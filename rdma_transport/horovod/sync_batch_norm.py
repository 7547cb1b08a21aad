"""Batch normalization over the batches of all ranks."""

from typing import Any

import tensorflow as tf

import rdma_transport.tensorflow as rt
from rdma_transport.horovod.process_sets import ProcessSet, global_process_set, group_of

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
        if not _is_keras3():
            axes, keep = args[:2] if len(args) > 1 else (args[0], kwargs["keep_dims"])
            mask = args[2] if len(args) > 2 else kwargs.get("mask")
            return self._over_ranks(inputs, list(axes), keep, mask)
        mask = args[0] if args else kwargs.get("mask")
        return self._over_ranks(inputs, list(self._reduction_axes), False, mask)

    def _over_ranks(self, inputs: Any, axes: list[int], keep: bool, mask: Any) -> Any:
        kind = inputs.dtype
        values = tf.cast(inputs, tf.float32) if kind in (tf.float16, tf.bfloat16) else inputs
        if mask is None:
            shape = tf.gather(tf.shape(values), axes)
            count = tf.cast(tf.reduce_prod(shape), values.dtype)
            total = tf.reduce_sum(values, axes)
            squares = tf.reduce_sum(tf.square(values), axes)
        else:
            weights = tf.cast(mask, values.dtype)
            while weights.shape.rank < values.shape.rank:
                weights = tf.expand_dims(weights, -1)
            count = tf.reduce_sum(weights)  # a mask has no channels
            total = tf.reduce_sum(values * weights, axes)
            squares = tf.reduce_sum(tf.square(values) * weights, axes)
        flat = tf.reshape(total, [-1])
        packed = tf.concat([flat, tf.reshape(squares, [-1]), [count]], 0)
        reduced = rt.all_reduce(packed, "sum", group=group_of(self._process_set))
        number = tf.size(flat)
        divisor = reduced[-1]
        mean = tf.reshape(reduced[:number] / divisor, tf.shape(total))
        square = tf.reshape(reduced[number : 2 * number] / divisor, tf.shape(total))
        variance = tf.maximum(square - tf.square(mean), 0)
        mean.set_shape(total.shape)
        variance.set_shape(total.shape)
        if keep:
            for axis in sorted(each % values.shape.rank for each in axes):
                mean, variance = tf.expand_dims(mean, axis), tf.expand_dims(variance, axis)
        return tf.cast(mean, kind), tf.cast(variance, kind)


def _is_keras3() -> bool:
    return not hasattr(keras.layers.BatchNormalization, "_calculate_mean_and_var")
