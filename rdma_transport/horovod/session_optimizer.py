"""The optimizers of version 1: ``tf.compat.v1.train.Optimizer``."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from rdma_transport.horovod.reduction import Reducer, Reduction


@contextlib.contextmanager
def _plain_conditions() -> Iterator[None]:
    """Build conditions within the graph: Adam finds its variables by the graph they are in."""
    enabled = tf.compat.v1.control_flow_v2_enabled()
    if not enabled or tf.executing_eagerly() or tf.inside_function():
        yield
        return
    tf.compat.v1.disable_control_flow_v2()
    try:
        yield
    finally:
        tf.compat.v1.enable_control_flow_v2()


class DistributedSessionOptimizer(tf.compat.v1.train.Optimizer):
    """Reduces what the ``compute_gradients()`` of another optimizer returns.

    With several passes per step, ``apply_gradients()`` changes variables in the last one only.
    """

    def __init__(
        self, optimizer: Any, reduction: Reduction, name: str | None, use_locking: bool
    ) -> None:
        super().__init__(
            name=name or f"Distributed{type(optimizer).__name__}", use_locking=use_locking
        )
        self._optimizer = optimizer
        self._reducer = Reducer(reduction)

    def register_local_var(self, var: Any) -> None:
        """Leave the gradient of a variable to this rank."""
        self._reducer.local.add(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return pairs of reduced gradient and variable."""
        pairs = list(self._optimizer.compute_gradients(*args, **kwargs))
        variables = [variable for _, variable in pairs]
        reduced = self._reducer([gradient for gradient, _ in pairs], variables)
        return list(zip(reduced, variables, strict=True))

    def apply_gradients(
        self, grads_and_vars: Sequence[Any], global_step: Any = None, name: str | None = None
    ) -> Any:
        """Do that of the optimizer."""
        pairs = list(grads_and_vars)

        def apply() -> Any:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)

        accumulator = self._reducer.accumulator
        if accumulator is None:
            return apply()

        def skip() -> Any:
            return None if global_step is None else tf.compat.v1.assign_add(global_step, 1)

        accumulator.build([g for g, _ in pairs], [v for _, v in pairs])
        with _plain_conditions(), tf.control_dependencies([g for g, _ in pairs if g is not None]):
            return accumulator.step(apply, skip)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Do that of the optimizer."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Do that of the optimizer."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """Do that of the optimizer."""
        return self._optimizer.variables(*args, **kwargs)
