"""Models of Keras 3."""

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record

import rdma_transport.tensorflow as rt
from rdma_transport.keras.calls import Call, active
from rdma_transport.keras.checks import examples_alone, same_weights, share
from rdma_transport.keras.xla import without_xla
from rdma_transport.tensorflow.parallel import not_now, not_parallel
from rdma_transport.tensorflow.rows import Batch

_MASK = "_keras_mask"


@functools.cache
def follow(distribution: Callable[[], Any]) -> None:
    """Let the calls of models follow what `distribution` returns. Once."""
    keras = sys.modules["keras"]
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            f"the backend of Keras is {keras.backend.backend()!r}, and rdma_transport serves "
            "'tensorflow': set KERAS_BACKEND=tensorflow"
        )
    keras.Model.__call__ = _on_all_ranks(keras.Model.__call__, distribution)
    seeds = keras.random.SeedGenerator
    seeds.next = _drawing(seeds.next)
    variable = sys.modules["keras.src.backend.tensorflow.core"].Variable
    variable._direct_assign = _assigning(variable._direct_assign)
    keras.layers.Layer.add_loss = _refusing(keras.layers.Layer.add_loss)
    optimizer = sys.modules["keras.src.optimizers.base_optimizer"].BaseOptimizer
    optimizer.apply = _comparing(optimizer.apply, distribution)
    trainer = sys.modules["keras.src.backend.tensorflow.trainer"].TensorFlowTrainer
    trainer.fit = _sharing(trainer.fit, distribution)
    for name in ("make_train_function", "make_test_function", "make_predict_function"):
        made = without_xla(getattr(trainer, name), lambda _: distribution() is not None)
        setattr(trainer, name, made)


def _on_all_ranks(call: Callable[..., Any], distribution: Callable[[], Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def changed(model: Any, *args: Any, **kwargs: Any) -> Any:
        chosen = distribution()
        if chosen is None or not_now() or not _runs(args, kwargs) or rt.world().size == 1:
            return call(model, *args, **kwargs)
        known = _known_of(model, call, args, kwargs)
        masks = _masks((args, kwargs))
        _check(model, call, known, (args, kwargs, masks))
        this = Call(known.label, known.is_statistic)
        stored = None if known.called and tf.executing_eagerly() else _stored(model)

        def on_rows(args: Any, kwargs: Any, masks: Any) -> Any:
            _set_masks((args, kwargs), masks)
            with this.running():
                outputs = call(model, *args, **kwargs)
            if stored is not None:
                _refuse_stored(known.label, _stored(model), stored)
            return outputs, _masks(outputs)

        run = rt.parallel(on_rows, name=known.label, known=known.called)
        outputs, masks = run(args, kwargs, masks)
        known.called = True
        _set_masks(outputs, masks)
        return outputs

    changed.autograph_info__ = None  # type: ignore[attr-defined]
    return changed


class _Known:
    """What is known of a model that was called."""

    def __init__(self, model: Any) -> None:
        self.label = f"model {model.name}"
        keras = sys.modules["keras"]
        normalization = [
            layer
            for layer in model._flatten_layers()
            if isinstance(layer, keras.layers.BatchNormalization)
        ]
        self.called = False
        self.mixes_in_training = bool(normalization)
        self.statistics = {id(v) for each in normalization for v in each.non_trainable_variables}
        with tf.init_scope():
            self.checked = tf.Variable(False, trainable=False)

    def is_statistic(self, variable: Any) -> bool:
        """Return whether a variable is a moving statistic of batch normalization."""
        return id(variable) in self.statistics


_models: weakref.WeakKeyDictionary[Any, _Known] = weakref.WeakKeyDictionary()


def _known_of(model: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> _Known:
    """Return what is known of a model. The first time, build it, with the weights of rank 0."""
    found = _models.get(model)
    if found is None:
        if any(getattr(layer, "stateful", False) for layer in model._flatten_layers()):
            raise NotImplementedError(
                f"model {model.name} cannot run on several ranks: it has a stateful layer, whose "
                "state is that of the examples of the batch before"
            )
        keras = sys.modules["keras"]
        if not model.built:
            specs = keras.tree.map_structure(_spec, (args, kwargs))
            keras.src.backend.compute_output_spec(
                lambda args, kwargs: call(model, *args, **kwargs), *specs
            )
        share(model.variables)
        found = _models[model] = _Known(model)
    return found


def _spec(leaf: Any) -> Any:
    keras = sys.modules["keras"]
    if isinstance(leaf, (tf.Tensor, tf.SparseTensor, np.ndarray)):
        kind = keras.src.backend.standardize_dtype(leaf.dtype)
        return keras.KerasTensor(tuple(leaf.shape), kind, sparse=isinstance(leaf, tf.SparseTensor))
    return leaf


def _check(model: Any, call: Callable[..., Any], known: _Known, arguments: Any) -> None:
    """Check, in the first call of a model, that it does not mix examples."""
    with tf.init_scope():
        done = bool(known.checked) if tf.executing_eagerly() else True
    batch = Batch(arguments, rt.world())
    if done or batch.cut is None:
        return

    def run(args: Any, kwargs: Any, masks: Any) -> list[Any]:
        _set_masks((args, kwargs), masks)
        if known.mixes_in_training and model._call_has_training_arg:
            kwargs = {**kwargs, "training": False}
        outputs = call(model, *args, **kwargs)
        tensors = [each for each in tf.nest.flatten(outputs) if tf.is_tensor(each)]
        return [each for each in tensors if each.shape.rank != 0]  # which the call refuses

    with not_parallel(), record.stop_recording():
        examples_alone(run, batch, known.label, known.checked)


def _runs(args: Any, kwargs: Any) -> bool:
    """Return whether Keras runs a model, and does not look at shapes only."""
    keras = sys.modules["keras"]
    scopes = sys.modules["keras.src.backend.common.stateless_scope"]
    leaves = keras.tree.flatten((args, kwargs))
    symbolic = any(isinstance(each, keras.KerasTensor) for each in leaves)
    return not symbolic and not scopes.in_stateless_scope()


def _stored(model: Any) -> dict[str, Any]:
    """Return the tensors that a model and its layers have as attributes."""
    return {
        f"{layer.name}.{name}": each
        for layer in model._flatten_layers()
        for name, value in vars(layer).items()
        for each in (value if isinstance(value, (list, tuple)) else [value])
        if isinstance(each, tf.Tensor)
    }


def _refuse_stored(label: str, found: dict[str, Any], before: dict[str, Any]) -> None:
    new = [name for name, each in found.items() if each is not before.get(name)]
    if new:
        raise NotImplementedError(
            f"{label} cannot run on several ranks: it keeps tensors of the call as attributes "
            f"({', '.join(new)}), which are those of a slice of the batch: return them from call()"
        )


def _masks(structure: Any) -> list[Any]:
    return [getattr(each, _MASK, None) for each in tf.nest.flatten(structure)]


def _set_masks(structure: Any, masks: list[Any]) -> None:
    for leaf, mask in zip(tf.nest.flatten(structure), masks, strict=True):
        if mask is not None:
            setattr(leaf, _MASK, mask)


def _drawing(draw: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(draw)
    def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        this = active()
        if this is None:
            return draw(self, *args, **kwargs)
        return this.draw(lambda: draw(self, *args, **kwargs))

    return changed


def _assigning(assign: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(assign)
    def changed(self: Any, value: Any) -> None:
        this = active()
        if this is None or this.assigns(self):
            assign(self, value)

    return changed


def _refusing(add_loss: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(add_loss)
    def changed(self: Any, loss: Any) -> None:
        this = active()
        if this is not None:
            this.refuse_loss()
        add_loss(self, loss)

    return changed


def _comparing(apply: Callable[..., Any], distribution: Callable[[], Any]) -> Callable[..., Any]:
    @functools.wraps(apply)
    def changed(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        result = apply(self, grads, trainable_variables)
        if distribution() is not None and not not_now() and rt.world().size > 1:
            same_weights(
                self._trainable_variables,
                tf.convert_to_tensor(self.iterations),
                f"optimizer {self.name}",
            )
        return result

    return changed


def _sharing(fit: Callable[..., Any], distribution: Callable[[], Any]) -> Callable[..., Any]:
    @functools.wraps(fit)
    def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if distribution() is not None and not not_now() and rt.world().size > 1:
            share(self.variables)
            share(self.optimizer.variables if self.optimizer is not None else [])
        return fit(self, *args, **kwargs)

    return changed
