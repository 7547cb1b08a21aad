"""tf-keras."""

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import random_seed

from rdma_transport.keras import files, hooks
from rdma_transport.keras.batch_norm import synchronized
from rdma_transport.keras.calls import Call, active
from rdma_transport.keras.elastic import Function
from rdma_transport.keras.models import Kind, on_all_ranks
from rdma_transport.tensorflow.parallel import not_parallel

_SCRATCH = "build_graph"  # in which models are built


@functools.cache
def follow() -> None:
    """Let tf-keras follow the distribution that is set. Once."""
    keras = sys.modules["tf_keras"]
    keras.Model.__call__ = on_all_ranks(_Keras2(), keras.Model.__call__)
    hooks.follow_model(keras.Model, keras.layers.Layer, keras.callbacks.CallbackList, _function_of)
    for optimizer in (keras.optimizers.Optimizer, keras.optimizers.legacy.Optimizer):
        hooks.follow_optimizer(optimizer, "apply_gradients", hooks.variables_of_pairs)
    generator = sys.modules["tf_keras.src.backend"].RandomGenerator
    generator.make_legacy_seed = _drawing(generator.make_legacy_seed)
    normalization = _Keras2.base()
    normalization._calculate_mean_and_var = synchronized(
        normalization._calculate_mean_and_var,
        lambda self, inputs, axes, keep, mask=None: (inputs, list(axes), keep, mask),
    )
    files.follow_keras(keras)


def _function_of(model: Any, kind: str, whole: Any) -> Function:
    if model._steps_per_execution is not None and int(model._steps_per_execution) > 1:
        raise NotImplementedError(
            "steps_per_execution of tf-keras is not offered in elastic jobs, whose ranks go on "
            "between two batches: omit it, or use Keras 3"
        )

    def run(batch: Any) -> Any:
        return whole.python_function(iter([batch]))

    return Function(kind, whole, run, 1)


class _Keras2(Kind):
    draws_again = False  # its operations draw from a state of their own

    @staticmethod
    def base() -> Any:
        """Return the base class of layers that normalize batches."""
        module = sys.modules["tf_keras.src.layers.normalization.batch_normalization"]
        return module.BatchNormalizationBase

    @property
    def normalization(self) -> type:  # type: ignore[override]
        found: type = self.base()
        return found

    def runs(self, arguments: Any) -> bool:
        keras = sys.modules["tf_keras"]
        symbolic = keras.src.engine.keras_tensor.KerasTensor
        if any(isinstance(each, symbolic) for each in tf.nest.flatten(arguments)):
            return False
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        if graph is not None and not tf.compat.v1.executing_eagerly_outside_functions():
            raise NotImplementedError(
                "models in graphs of version 1 cannot run on several ranks: enable eager execution"
            )
        return graph is None or getattr(graph, "name", "") != _SCRATCH

    def build(self, model: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> None:
        def placeholder(leaf: Any) -> Any:
            if not isinstance(leaf, (tf.Tensor, np.ndarray)):
                return leaf
            return tf.compat.v1.placeholder(leaf.dtype, leaf.shape)

        with tf.__internal__.FuncGraph(_SCRATCH).as_default(), not_parallel():
            args, kwargs = tf.nest.map_structure(placeholder, (args, kwargs))
            with Call(f"model {model.name}", trial=True).running():
                call(model, *args, **kwargs)

    def takes_training(self, model: Any) -> bool:
        return bool(model._expects_training_arg)


def _drawing(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Change how seeds are drawn for operations that have a state of their own."""

    @functools.wraps(draw)
    def changed(self: Any) -> Any:
        this = active()
        if this is None:
            return draw(self)

        def seed() -> Any:
            found = draw(self)
            return random_seed.get_seed(None)[1] if found is None else found

        return this.draw_number(seed)

    return changed
