"""The optimizers of Keras: those of Keras 3, and of tf-keras both kinds.

A distributed optimizer is the given one, with a class made for it: a subclass of its own, of the
same name. So it keeps its variables, and is saved and loaded as what it was.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from rdma_transport.horovod import keras_models
from rdma_transport.horovod.reduction import Accumulator, Reducer, Reduction
from rdma_transport.keras.kinds import keras2, keras3


class _State(Reducer):
    """What an optimizer has for this, hidden from what Keras saves."""

    reduced = False  # the gradients that apply_gradients() gets next


class DistributedKerasOptimizer:
    """What the classes made for optimizers have in common."""

    _distributed_reduction: Reduction  # of the class
    _distributed_base: type

    @property
    def _distributed_state(self) -> _State:
        state = self.__dict__.get("_distributed_state_")
        if state is None:
            state = self.__dict__["_distributed_state_"] = _State(self._distributed_reduction)
        return state

    @property
    def _agg_helper(self) -> Accumulator | None:
        return self._distributed_state.accumulator

    def register_local_var(self, var: Any) -> None:
        """Leave the gradient of a variable to this rank."""
        self._distributed_state.local.add(var)

    def _apply_when_due(self, apply: Callable[[], Any]) -> Any:
        accumulator = self._distributed_state.accumulator
        if accumulator is None:
            return apply()
        iterations = self.iterations  # type: ignore[attr-defined]

        def skip() -> Any:
            return iterations.assign_add(1)

        accumulator.step(apply, skip)
        return iterations


class _Keras3(DistributedKerasOptimizer):
    """All ways into an optimizer of Keras 3 lead through ``apply()``."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Reduce gradients, and apply them."""
        grads = list(grads)
        if not grads or self._distributed_state.reduced:
            super().apply(grads, trainable_variables)  # type: ignore[misc]
            return
        if trainable_variables is None:
            trainable_variables = self._trainable_variables  # type: ignore[attr-defined]
        variables = list(trainable_variables)
        if not self.built:  # type: ignore[has-type]
            with tf.init_scope():
                self.build(variables)  # type: ignore[attr-defined]
            self.built = True
        reduced = self._distributed_state(grads, variables)
        self._apply_when_due(lambda: super(_Keras3, self).apply(reduced, variables))  # type: ignore[misc]


class _Keras2(DistributedKerasOptimizer):
    """``minimize()`` of tf-keras computes gradients by a method, and then applies them."""

    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """Return reduced gradients."""
        gradients = super().get_gradients(loss, params)  # type: ignore[misc]
        return self._taken(gradients, list(params))

    def compute_gradients(self, loss: Any, var_list: Any, *args: Any, **kwargs: Any) -> Any:
        """Return pairs of reduced gradient and variable."""
        pairs = list(super().compute_gradients(loss, var_list, *args, **kwargs))  # type: ignore[misc]
        return self._taken_pairs(pairs)

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> Any:
        if hasattr(super(), "_compute_gradients"):
            pairs = super()._compute_gradients(loss, var_list, grad_loss, tape)  # type: ignore[misc]
            return self._taken_pairs(list(pairs))
        return self.compute_gradients(loss, var_list, tape=tape)

    def _taken(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        state = self._distributed_state
        reduced = state(gradients, variables)
        state.reduced = True
        return reduced

    def _taken_pairs(self, pairs: Sequence[Any]) -> list[Any]:
        variables = [variable for _, variable in pairs]
        reduced = self._taken([gradient for gradient, _ in pairs], variables)
        return list(zip(reduced, variables, strict=True))

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Apply gradients. Reduce those that no method of the optimizer has computed."""
        state = self._distributed_state
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        if not state.reduced:
            reduced = state([gradient for gradient, _ in pairs], variables)
            pairs = list(zip(reduced, variables, strict=True))
        state.reduced = False
        self._create(variables)
        return self._apply_when_due(
            lambda: super(_Keras2, self).apply_gradients(pairs, *args, **kwargs),  # type: ignore[misc]
        )

    def _create(self, variables: Sequence[Any]) -> None:
        """Create variables, which must not be created in a condition."""
        if self._distributed_state.accumulator is None:
            return
        with tf.init_scope():
            create_variables(self, variables)


def create_variables(optimizer: Any, variables: Sequence[Any]) -> None:
    """Create the variables that an optimizer keeps of those which it trains."""
    if hasattr(optimizer, "_create_all_weights"):  # tf-keras, legacy
        optimizer.iterations  # noqa: B018
        optimizer._create_all_weights(variables)
    elif hasattr(optimizer, "build"):
        optimizer.build(variables)


def _kinds() -> tuple[tuple[type, ...], tuple[type, ...]]:
    """Return the classes of optimizers of Keras 3 and of tf-keras, if they are imported."""
    keras, tf_keras = keras3(), keras2()
    new = () if keras is None else (keras.optimizers.Optimizer,)
    if tf_keras is None:
        return new, ()
    return new, (
        tf_keras.optimizers.Optimizer,
        tf_keras.optimizers.legacy.Optimizer,
        tf_keras.mixed_precision.LossScaleOptimizer,
    )


def is_keras_optimizer(optimizer: Any) -> bool:
    """Return whether an object is an optimizer of Keras."""
    new, old = _kinds()
    return isinstance(optimizer, new + old)


def distribute(optimizer: Any, reduction: Reduction, name: str | None) -> Any:
    """Make an optimizer reduce its gradients over the ranks; return it."""
    base = type(optimizer)
    if isinstance(optimizer, DistributedKerasOptimizer):
        base = optimizer._distributed_base
    keras3 = isinstance(optimizer, _kinds()[0])
    methods = _Keras3 if keras3 else _Keras2
    own = {
        "_distributed_reduction": reduction,
        "_distributed_base": base,
        "__module__": keras_models.public_module(base),
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
    }
    metaclass: Any = type(base)
    optimizer.__class__ = metaclass(base.__name__, (methods, base), own)
    optimizer.__dict__.pop("_distributed_state_", None)
    if name is not None and keras3:
        optimizer.name = name
    if keras3:
        keras_models.follow()
    return optimizer
