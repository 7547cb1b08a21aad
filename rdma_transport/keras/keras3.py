"""Keras 3."""

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from rdma_transport.keras import files, hooks
from rdma_transport.keras.batch_norm import synchronized
from rdma_transport.keras.calls import active
from rdma_transport.keras.elastic import Function
from rdma_transport.keras.models import Kind, on_all_ranks


@functools.cache
def follow() -> None:
    """Let Keras 3 follow the distribution that is set. Once."""
    keras = sys.modules["keras"]
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            f"the backend of Keras is {keras.backend.backend()!r}, and rdma_transport serves "
            "'tensorflow': set KERAS_BACKEND=tensorflow"
        )
    keras.Model.__call__ = on_all_ranks(_Keras3(), keras.Model.__call__)
    trainer = sys.modules["keras.src.backend.tensorflow.trainer"].TensorFlowTrainer
    hooks.follow_model(trainer, keras.layers.Layer, keras.callbacks.CallbackList, _function_of)
    optimizer = sys.modules["keras.src.optimizers.base_optimizer"].BaseOptimizer
    hooks.follow_optimizer(optimizer, "apply", lambda self, _: self._trainable_variables)
    seeds = keras.random.SeedGenerator
    seeds.next = _drawing(seeds.next)
    normalization = keras.layers.BatchNormalization
    normalization._moments = synchronized(
        normalization._moments,
        lambda self, inputs, mask: (inputs, list(self._reduction_axes), False, mask),
    )
    files.follow_keras(keras)


def _function_of(model: Any, kind: str, whole: Callable[..., Any]) -> Function:
    if kind == "predict":
        return Function(kind, whole, whole, 0)

    @tf.autograph.experimental.do_not_convert
    def run(batch: Any) -> Any:
        return whole(iter([batch]))

    return Function(kind, whole, run, model.steps_per_execution)


class _Keras3(Kind):
    draws_again = True

    @property
    def normalization(self) -> type:  # type: ignore[override]
        found: type = sys.modules["keras"].layers.BatchNormalization
        return found

    def runs(self, arguments: Any) -> bool:
        keras = sys.modules["keras"]
        scopes = sys.modules["keras.src.backend.common.stateless_scope"]
        leaves = keras.tree.flatten(arguments)
        symbolic = any(isinstance(each, keras.KerasTensor) for each in leaves)
        return not symbolic and not scopes.in_stateless_scope()

    def build(self, model: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> None:
        keras = sys.modules["keras"]

        def specification(leaf: Any) -> Any:
            if not isinstance(leaf, (tf.Tensor, tf.SparseTensor, np.ndarray)):
                return leaf
            kind = keras.src.backend.standardize_dtype(leaf.dtype)
            sparse = isinstance(leaf, tf.SparseTensor)
            return keras.KerasTensor(tuple(leaf.shape), kind, sparse=sparse)

        args, kwargs = keras.tree.map_structure(specification, (args, kwargs))
        keras.src.backend.compute_output_spec(functools.partial(call, model), *args, **kwargs)

    def takes_training(self, model: Any) -> bool:
        return bool(model._call_has_training_arg)


def _drawing(draw: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(draw)
    def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        this = active()
        if this is None:
            return draw(self, *args, **kwargs)
        return this.draw(lambda: draw(self, *args, **kwargs))

    return changed
