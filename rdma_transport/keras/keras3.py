"""Models of Keras 3."""

import functools
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

import rdma_transport.tensorflow as rt
from rdma_transport.keras.calls import Call, active
from rdma_transport.tensorflow.parallel import is_parallel

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


def _on_all_ranks(call: Callable[..., Any], distribution: Callable[[], Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def changed(model: Any, *args: Any, **kwargs: Any) -> Any:
        chosen = distribution()
        if chosen is None or is_parallel() or not _runs(args, kwargs) or rt.world().size == 1:
            return call(model, *args, **kwargs)
        label = f"model {model.name!r}"
        this = Call(label, _statistics_of(model))
        masks = _masks(tf.nest.flatten((args, kwargs)))

        def on_rows(args: Any, kwargs: Any, masks: Any) -> Any:
            _set_masks(tf.nest.flatten((args, kwargs)), masks)
            with this.running():
                outputs = call(model, *args, **kwargs)
            return outputs, _masks(tf.nest.flatten(outputs))

        outputs, masks = rt.parallel(on_rows, name=label)(args, kwargs, masks)
        _set_masks(tf.nest.flatten(outputs), masks)
        return outputs

    changed.autograph_info__ = None  # type: ignore[attr-defined]
    return changed


def _runs(args: Any, kwargs: Any) -> bool:
    """Return whether Keras runs a model, and does not look at shapes only."""
    keras = sys.modules["keras"]
    scopes = sys.modules["keras.src.backend.common.stateless_scope"]
    leaves = keras.tree.flatten((args, kwargs))
    symbolic = any(isinstance(each, keras.KerasTensor) for each in leaves)
    return not symbolic and not scopes.in_stateless_scope()


def _statistics_of(model: Any) -> Callable[[Any], bool]:
    normalization = sys.modules["keras"].layers.BatchNormalization
    found = {
        id(variable)
        for layer in model._flatten_layers()
        if isinstance(layer, normalization)
        for variable in layer.non_trainable_variables
    }
    return lambda variable: id(variable) in found


def _masks(leaves: list[Any]) -> list[Any]:
    return [getattr(each, _MASK, None) for each in leaves]


def _set_masks(leaves: list[Any], masks: list[Any]) -> None:
    for leaf, mask in zip(leaves, masks, strict=True):
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
