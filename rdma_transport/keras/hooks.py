"""Changes of methods that both kinds of Keras have, and of TensorFlow's variables."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from rdma_transport.collectives.membership import is_elastic
from rdma_transport.keras import elastic, elastic_hooks
from rdma_transport.keras.calls import active
from rdma_transport.keras.checks import same_weights, share
from rdma_transport.keras.current import applies, distribution
from rdma_transport.keras.xla import without_xla


@functools.cache
def follow_tensorflow() -> None:
    """Let calls of models know which variables they assign. Once."""
    base = resource_variable_ops.BaseResourceVariable
    for name in ("assign", "assign_add", "assign_sub"):
        changed = _assigning(getattr(base, name))
        for kind in (base, resource_variable_ops.ResourceVariable):  # which has a copy
            setattr(kind, name, changed)
    follow_optimizer(tf.compat.v1.train.Optimizer, "apply_gradients", variables_of_pairs)


def follow_model(
    model: type, layer: type, callbacks: type, function_of: Callable[..., elastic.Function]
) -> None:
    """Change how models are trained, and how layers add losses.

    `callbacks` is the class of lists of callbacks. `function_of`: see ``elastic_hooks``.
    """
    changed: Any = model
    changed.fit = _sharing(changed.fit)
    for name in ("make_train_function", "make_test_function", "make_predict_function"):
        made = without_xla(getattr(changed, name), lambda _: distribution() is not None)
        setattr(changed, name, made)
    if is_elastic():
        elastic_hooks.follow_model(changed, callbacks, function_of)
    layer.add_loss = _refusing(layer.add_loss)  # type: ignore[attr-defined]


def follow_optimizer(optimizer: Any, name: str, variables_of: Callable[..., Any]) -> None:
    """Compare weights after the method `name` of an optimizer, which applies gradients.

    `variables_of` returns the variables, of what the method gets.
    """
    apply = getattr(optimizer, name)

    @functools.wraps(apply)
    def changed(self: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
        grads = list(grads)
        result = apply(self, grads, *args, **kwargs)
        if not applies():
            return result
        session = not tf.compat.v1.executing_eagerly_outside_functions()
        with tf.control_dependencies([result] if session else []):
            check = same_weights(self, variables_of(self, grads))
        return tf.group(result, check) if session else result

    setattr(optimizer, name, changed)


def variables_of_pairs(_: Any, pairs: Sequence[Any]) -> list[Any]:
    """Return the variables of pairs of a gradient and a variable."""
    return [variable for _, variable in pairs]


def _assigning(assign: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(assign)
    def changed(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        this = active()
        if this is None or this.assigns(self, value):
            return assign(self, value, *args, **kwargs)
        return self

    return changed


def _refusing(add_loss: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(add_loss)
    def changed(self: Any, losses: Any, *args: Any, **kwargs: Any) -> None:
        this = active()
        if this is not None and any(tf.is_tensor(each) for each in tf.nest.flatten(losses)):
            this.refuse_loss()
        add_loss(self, losses, *args, **kwargs)

    return changed


def _sharing(fit: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fit)
    def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if applies() and not is_elastic():
            optimizer = getattr(self, "optimizer", None)
            given = getattr(optimizer, "variables", [])
            share(self.variables if self.built else [])
            share(given() if callable(given) else given)
        return fit(self, *args, **kwargs)

    return changed
