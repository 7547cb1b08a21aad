"""How gradients are sent."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from rdma_transport.settings import read
from rdma_transport.tensorflow.factors import reduce_products
from rdma_transport.tensorflow.groups import Group

_HALVES = {"bf16": tf.bfloat16, "fp16": tf.float16}


@dataclass(frozen=True)
class Scheme:
    """One of the values of the setting GRADIENTS."""

    name: str

    def products(self, gradients: Sequence[Any], op: str, group: Group) -> dict[int, Any]:
        """Return, by their places, the gradients that factors reduce."""
        if self.name not in ("auto", "factors"):
            return {}
        return reduce_products(gradients, op, group, always=self.name == "factors")

    def compress(self, tensor: Any) -> Any:
        """Return what is sent of a gradient: half of it if its type is float32 and this says so."""
        half = _HALVES.get(self.name)
        if half is None or tensor is None or tensor.dtype != tf.float32:
            return tensor
        return _cast(tensor, half)

    def decompress(self, tensor: Any, like: Any) -> Any:
        """Return what came of a gradient, in its type."""
        return tensor if tensor is None or tensor.dtype == like.dtype else _cast(tensor, like.dtype)


def gradient_scheme() -> Scheme:
    """Return that of the setting GRADIENTS."""
    return Scheme(read().value("GRADIENTS").lower())


def _cast(tensor: Any, dtype: Any) -> Any:
    if isinstance(tensor, tf.IndexedSlices):
        values = tf.cast(tensor.values, dtype)
        return tf.IndexedSlices(values, tensor.indices, tensor.dense_shape)
    return tf.cast(tensor, dtype)
