"""The calls of models, of Keras 3 and of tf-keras alike."""

import functools
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record

import rdma_transport.tensorflow as rt
from rdma_transport.collectives.membership import is_elastic
from rdma_transport.keras.calls import Call, variable_of
from rdma_transport.keras.checks import examples_alone, share
from rdma_transport.keras.current import applies
from rdma_transport.tensorflow.parallel import Known, not_parallel
from rdma_transport.tensorflow.rows import Batch
from rdma_transport.tensorflow.threads import refuse_second_thread

_MASK = "_keras_mask"


class Kind(ABC):
    """A kind of Keras: what its models call otherwise than those of the other kind."""

    normalization: type
    """The layers whose non-trainable variables are statistics of batches."""
    draws_again: bool
    """Whether a call can be made to draw the same random numbers again."""

    @abstractmethod
    def runs(self, arguments: Any) -> bool:
        """Return whether a call computes, and does not look at shapes only."""

    @abstractmethod
    def build(self, model: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Create the variables of a model that has none yet, while a function is traced."""

    @abstractmethod
    def takes_training(self, model: Any) -> bool:
        """Return whether a model has the argument `training`."""


class _Known:
    """What is known of a model that was called."""

    def __init__(self, kind: Kind, model: Any) -> None:
        self.label = f"model {model.name}"
        self.seen = Known()
        layers: list[Any] = [
            each for each in model._flatten_layers() if isinstance(each, kind.normalization)
        ]
        self.normalizes = bool(layers)
        self._statistics = {
            id(variable_of(each)) for layer in layers for each in layer.non_trainable_variables
        }
        with tf.init_scope():
            self.checked = tf.Variable(False, trainable=False)

    def is_statistic(self, variable: Any) -> bool:
        """Return whether a variable of TensorFlow is a statistic of batches."""
        return id(variable) in self._statistics


_models: weakref.WeakKeyDictionary[Any, _Known] = weakref.WeakKeyDictionary()


def on_all_ranks(kind: Kind, call: Callable[..., Any]) -> Callable[..., Any]:
    """Change the call of models: all ranks run it together, if a distribution is set."""

    @functools.wraps(call)
    def changed(model: Any, *args: Any, **kwargs: Any) -> Any:
        if not applies() or not kind.runs((args, kwargs)):
            return call(model, *args, **kwargs)
        refuse_second_thread(f"model {model.name}")
        known = _known_of(kind, model, call, args, kwargs)
        masks = _masks((args, kwargs))
        _check(kind, model, call, (args, kwargs, masks))
        this = Call(known.label, known.is_statistic)
        stored = None if known.seen.called and tf.executing_eagerly() else _stored(model)

        def on_rows(args: Any, kwargs: Any, masks: Any) -> Any:
            _set_masks((args, kwargs), masks)
            with this.running():
                outputs = call(model, *args, **kwargs)
            if stored is not None:
                _refuse_stored(known.label, _stored(model), stored)
            return outputs, _masks(outputs)

        run = rt.parallel(on_rows, name=known.label, known=known.seen)
        outputs, masks = run(args, kwargs, masks)
        _set_masks(outputs, masks)
        return outputs

    changed.autograph_info__ = None  # type: ignore[attr-defined]  # autograph leaves it as it is
    return changed


def _known_of(kind: Kind, model: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> _Known:
    """Return what is known of a model. The first time, build it, with the weights of rank 0."""
    found = _models.get(model)
    if found is None:
        if not model.built and tf.executing_eagerly():
            trial = Call(f"model {model.name}", trial=True)
            with not_parallel(), record.stop_recording(), trial.running():
                call(model, *args, **kwargs)
        elif not model.built:
            kind.build(model, call, args, kwargs)
        if any(layer.stateful for layer in _recurrent_layers(model)):
            raise NotImplementedError(
                f"model {model.name} cannot run on several ranks: it has a stateful layer, whose "
                "state is that of the examples of the batch before"
            )
        if not is_elastic():  # there, ranks share them with all else that a step uses
            share(model.variables)
        found = _models[model] = _Known(kind, model)
    return found


def _recurrent_layers(model: Any) -> list[Any]:
    found = [each for each in model._flatten_layers() if hasattr(each, "return_sequences")]
    return [each for each in found if hasattr(each, "stateful")]


def _check(kind: Kind, model: Any, call: Callable[..., Any], arguments: Any) -> None:
    """Check, in the first call of a model, that it does not mix examples."""
    known = _models[model]
    with tf.init_scope():
        done = bool(known.checked) if tf.executing_eagerly() else True
    if done:
        return
    batch = Batch(arguments, rt.world())
    if batch.cut is None:
        return

    def run(args: Any, kwargs: Any, masks: Any) -> list[Any]:
        _set_masks((args, kwargs), masks)
        if (known.normalizes or not kind.draws_again) and kind.takes_training(model):
            kwargs = {**kwargs, "training": False}
        outputs = call(model, *args, **kwargs)
        tensors = [each for each in tf.nest.flatten(outputs) if tf.is_tensor(each)]
        return [each for each in tensors if each.shape.rank != 0]  # which the call refuses

    with not_parallel(), record.stop_recording():
        trial = Call(known.label, known.is_statistic, trial=True)
        examples_alone(run, batch, trial, known.checked, kind.draws_again)


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
