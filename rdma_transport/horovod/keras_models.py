"""What models of Keras need for distributed optimizers: to be saved, loaded and compiled."""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rdma_transport.horovod.basics import is_initialized
from rdma_transport.keras.kinds import keras3
from rdma_transport.keras.xla import without_xla


def public_module(kind: type) -> str:
    """Return the module in which Keras looks for the class of a saved optimizer."""
    module: str = kind.__module__
    return "keras.optimizers" if module.startswith("keras.") else module


def is_distributed(optimizer: Any) -> bool:
    """Return whether an optimizer of Keras, or the one inside it, reduces gradients."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return hasattr(optimizer, "_distributed_reduction") or (
        inner is not None and is_distributed(inner)
    )


class _Variables(list[Any]):
    """The variables of an optimizer, which programs for Keras 2 get by a call."""

    def __call__(self) -> list[Any]:
        return self


def follow() -> None:
    """Change methods of Keras 3, if it is imported, for distributed training. Once.

    - Losses are scaled by an optimizer around the distributed one, which skips steps whose
      gradients are not finite: it must see reduced gradients, since all ranks must skip the same
      steps.
    - XLA cannot compile the reduction, so the training step is left to TensorFlow, also one of the
      model's own, which may contain a reduction.
    - ``optimizer.variables()`` and ``compile(experimental_run_tf_function=False)``, which most
      programs for Horovod have, work as in Keras 2.
    """
    if keras3() is not None:
        _change()


@functools.cache
def _change() -> None:
    keras = keras3()
    outer = keras.optimizers.LossScaleOptimizer
    outer.apply = _reducing_first(outer.apply)
    base = sys.modules["keras.src.optimizers.base_optimizer"].BaseOptimizer
    variables = base.variables.fget
    base.variables = property(lambda self: _Variables(variables(self)), doc=variables.__doc__)
    trainer = sys.modules["keras.src.trainers.trainer"].Trainer
    trainer.compile = _without_old_option(trainer.compile)
    if keras.backend.backend() == "tensorflow":
        trainer = sys.modules["keras.src.backend.tensorflow.trainer"].TensorFlowTrainer
        step = trainer.train_step
        trainer.make_train_function = without_xla(
            trainer.make_train_function,
            lambda model: is_initialized() and _reduces(model, step),
        )


def _without_old_option(compile_model: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(compile_model)
    def changed(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("experimental_run_tf_function", None)
        compile_model(self, *args, **kwargs)

    return changed


def _reducing_first(apply: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(apply)
    def changed(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        inner = self.inner_optimizer
        if not hasattr(inner, "_distributed_reduction"):
            apply(self, grads, trainable_variables)
            return
        state = inner._distributed_state
        if state.accumulator is not None:
            raise NotImplementedError(
                "backward_passes_per_step of an optimizer whose loss is scaled is not offered: "
                "use gradient_accumulation_steps of the Keras optimizer"
            )
        variables = trainable_variables
        if variables is None:
            variables = inner._trainable_variables
        variables = list(variables)
        reduced = state(list(grads), variables)
        state.reduced = True
        try:
            apply(self, reduced, variables)
        finally:
            state.reduced = False

    return changed


def _reduces(model: Any, train_step: Any) -> bool:
    """Return whether a step of a model reduces gradients, or may: it has one of its own."""
    own = type(model).train_step is not train_step
    return own or any(map(is_distributed, vars(model).values()))


def load_model(
    keras: Any,
    distribute: Callable[[Any], Any],
    filepath: Any,
    custom_optimizers: Sequence[type] | None,
    custom_objects: dict[str, Any] | None,
) -> Any:
    """Load a model, and make its optimizer distributed."""
    objects = {kind.__name__: kind for kind in custom_optimizers or ()}
    objects.update(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=objects)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        inner = getattr(optimizer, "inner_optimizer", None)
        optimizer = distribute(optimizer if inner is None else inner)
        if _lacks_variables(optimizer, model):
            model.optimizer = _restored(optimizer, model, filepath)
    return model


def _lacks_variables(optimizer: Any, model: Any) -> bool:
    """Return whether Keras 3 built the optimizer without variables: it does so from HDF5 files."""
    known = getattr(optimizer, "_trainable_variables", None)
    return known == [] and optimizer.built and bool(model.trainable_variables)


def _restored(optimizer: Any, model: Any, filepath: Any) -> Any:
    """Return such an optimizer with the model's variables, and its own from the file."""
    import h5py
    from keras.src.legacy.saving import legacy_h5_format as format_of

    made = optimizer.from_config(optimizer.get_config())
    made.build(model.trainable_variables)
    with h5py.File(filepath) as file:
        if "optimizer_weights" in file:
            made.set_weights(format_of.load_optimizer_weights_from_hdf5_group(file))
    return made
