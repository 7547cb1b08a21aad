"""Refuses updates of variables without any reduction: each rank would train alone, unnoticed.

Gradients of a call that runs on all ranks are reduced where they are computed. An update is refused
if none of its variables ever got such a gradient. Also with functions, which are traced: the check
is made where Python runs. Only for more than one rank.
"""

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import (
    gen_state_ops,
    gradients_util,
    ref_variable,
    resource_variable_ops,
)

from rdma_transport import changes
from rdma_transport.collectives.membership import is_elastic
from rdma_transport.data_parallel import scaling
from rdma_transport.tensorflow.parallel import ran_whole, reduced_variables

_ALONE = "_rdma_transport_differentiated_alone"
_UPDATES = ("assign", "assign_add", "assign_sub", "scatter_add", "scatter_sub", "scatter_update")
_SHOWN = 4  # names of variables
_local = threading.local()


def follow_tensorflow() -> None:
    """Look at tapes and gradients, at variables, and at the optimizers of version 1. Once."""
    tf.GradientTape.gradient = _noting(tf.GradientTape.gradient, sources=2)
    gradients_util._GradientsHelper = _noting(gradients_util._GradientsHelper, sources=1)
    kinds: list[Any] = [resource_variable_ops.BaseResourceVariable]
    kinds += [resource_variable_ops.ResourceVariable, ref_variable.RefVariable]
    for kind in kinds:
        for name in filter(vars(kind).__contains__, _UPDATES):
            setattr(kind, name, _guarding_update(getattr(kind, name)))
    for name in _UPDATES:  # of variables that are no resources
        setattr(gen_state_ops, name, _guarding_update(getattr(gen_state_ops, name)))
    _guard_apply_gradients(tf.compat.v1.train.Optimizer)


def follow_keras() -> None:
    """Look at the optimizers of Keras 3, and of tf-keras, if it is imported. Idempotent."""
    if base := sys.modules.get("keras.src.optimizers.base_optimizer"):
        _guard_apply(base.BaseOptimizer)
    for name in ("optimizer", "legacy.optimizer_v2"):
        if found := sys.modules.get(f"tf_keras.src.optimizers.{name}"):
            _guard_apply_gradients(getattr(found, "_BaseOptimizer", None) or found.OptimizerV2)


def _noting(gradient: Callable[..., Any], sources: int) -> Callable[..., Any]:
    """Note on variables whether the gradients that they got were reduced."""

    @functools.wraps(gradient)
    def changed(*args: Any, **kwargs: Any) -> Any:
        results = gradient(*args, **kwargs)
        given = args[sources] if len(args) > sources else kwargs.get("sources", kwargs.get("xs"))
        pairs = zip(tf.nest.flatten(given), tf.nest.flatten(results), strict=False)
        found = [_variable_of(each) for each, result in pairs if result is not None]
        variables = [each for each in found if isinstance(each, tf.Variable)]
        alone = not any(each in reduced_variables for each in variables)
        for each in variables:
            setattr(each, _ALONE, alone)
        return results

    return changed


def _guarding_update(update: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(update)
    def changed(*args: Any, **kwargs: Any) -> Any:
        variable = args[0] if args else kwargs.get("ref")
        if getattr(variable, _ALONE, False) and not getattr(_local, "inside", False):
            _refuse(f"{update.__name__}()", [variable])
        return update(*args, **kwargs)

    return changed


def _guard_apply(kind: Any) -> None:
    if "_rdma_transport_guarded" in vars(kind):
        return
    kind._rdma_transport_guarded = True
    apply = kind.apply

    @functools.wraps(apply)
    def changed(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        given = trainable_variables if trainable_variables is None else list(trainable_variables)
        known = getattr(self, "_trainable_variables", ()) if given is None else given
        with _update(f"{type(self).__name__}.apply()", known):
            return apply(self, grads, given)

    kind.apply = changed


def _guard_apply_gradients(kind: Any) -> None:
    if "_rdma_transport_guarded" in vars(kind):
        return
    kind._rdma_transport_guarded = True
    apply = kind.apply_gradients

    @functools.wraps(apply)
    def changed(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        with _update(f"{type(self).__name__}.apply_gradients()", variables):
            return apply(self, pairs, *args, **kwargs)

    kind.apply_gradients = changed


@contextlib.contextmanager
def _update(update: str, variables: Sequence[Any]) -> Iterator[None]:
    """Check an optimizer's update; the changes of variables within need no check of their own."""
    found = [_variable_of(each) for each in variables]
    if found and not any(each in reduced_variables for each in found):
        _refuse(update, found)
    scaling.check(update)
    before = getattr(_local, "inside", False)
    _local.inside = True
    try:
        yield
    finally:
        _local.inside = before


def _refuse(update: str, variables: Sequence[Any]) -> None:
    names = [getattr(each, "path", None) or each.name for each in variables]
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    seen = f" Seen: {'; '.join(ran_whole.values())}." if ran_whole else ""
    if any(isinstance(each, ref_variable.RefVariable) for each in variables):
        seen += (
            " The variables are no resources, and calls that ranks share have no gradients of "
            "such: call tf.compat.v1.enable_resource_variables() before any is made."
        )
    how = (
        "In elastic jobs, ranks share what a Keras model computes in fit(): train by fit(), with a "
        "train_step() of the model's own if need be, or omit --elastic"
        if is_elastic()
        else "Compute the outputs of a batch by calling a Keras model on it, or wrap the function "
        "that computes them: forward = rdma_transport.tensorflow.parallel(forward)"
    )
    raise RuntimeError(
        f"no reduction would happen: {update} at {changes.place()} updates {shown}, and no "
        f"gradient came from a call that the ranks share, so each rank would train alone.{seen} "
        f"{how}"
    )


def _variable_of(variable: Any) -> Any:
    """Return TensorFlow's variable of one of Keras 3, others as they are."""
    value = getattr(variable, "value", None)
    return variable if value is None or callable(value) else value
