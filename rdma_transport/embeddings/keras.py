"""A layer of tables of embeddings, for Keras 3 if that is imported before, or for ``tf.keras``."""

from typing import Any

import tensorflow as tf

from rdma_transport.embeddings.tensorflow import lookup
from rdma_transport.keras.kinds import keras3

_Layer: Any = (keras3() or tf.keras).layers.Layer


class Embedding(_Layer):
    """Looks up rows of a table. Training updates the table on all ranks.

    The optimizer of the table updates its rows, not that of the model, which updates a scalar by
    zero: the anchor, by which gradients find the table. All ranks must train with equally many
    steps. `combiner` is that of ``rdma_transport.embeddings.tensorflow.lookup()``. Files of models
    do not contain the table: save it by ``Table.save()``.
    """

    def __init__(self, table: Any, combiner: str | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.table = table
        self.combiner = combiner
        self.supports_jit = False

    def build(self, input_shape: Any) -> None:
        """Make the anchor."""
        self.anchor = self.add_weight(
            name="anchor", shape=(), dtype="float32", initializer="zeros", trainable=True
        )
        super().build(input_shape)

    def call(self, ids: Any) -> Any:
        """Return the rows of ids, in the type in which the layer computes."""
        anchor = tf.cast(tf.convert_to_tensor(self.anchor), tf.float32)
        rows = lookup(self.table, ids, combiner=self.combiner, anchor=anchor)
        return tf.cast(rows, self.compute_dtype) if tf.is_tensor(rows) else rows
