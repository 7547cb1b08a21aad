"""Changes of what ``fit()``, ``evaluate()`` and ``predict()`` call, for elastic training."""

import functools
from collections.abc import Callable
from typing import Any

from rdma_transport.keras.elastic import Function, training

_KINDS = ("train", "test", "predict")
_OF_CALLBACKS = (
    *("on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end"),
    *("on_train_batch_begin", "on_train_batch_end", "on_test_begin", "on_test_end"),
    *("on_test_batch_begin", "on_test_batch_end"),
)


def follow_model(model: Any, callbacks: Any, function_of: Callable[..., Function]) -> None:
    """Change models, and lists of callbacks.

    `function_of` returns, of a model, "train", "test" or "predict", and Keras' own function for it,
    that which ranks call together.
    """
    makers = {kind: _making(model, kind, function_of) for kind in _KINDS}
    for kind, make in makers.items():
        setattr(model, f"make_{kind}_function", make)
    model.fit = _shared(model.fit, makers, is_fit=True)
    for name in ("evaluate", "predict"):
        setattr(model, name, _shared(getattr(model, name), makers))
    for name in _OF_CALLBACKS:
        setattr(callbacks, name, _called(getattr(callbacks, name)))


def _making(model: Any, kind: str, function_of: Callable[..., Function]) -> Callable[..., Any]:
    make, name = getattr(model, f"make_{kind}_function"), f"{kind}_function"

    @functools.wraps(make)
    def changed(self: Any, force: bool = False) -> Any:
        make(self, force)
        whole = getattr(self, name)
        if not isinstance(whole, Function):
            setattr(self, name, function_of(self, kind, whole))
        return getattr(self, name)

    return changed


def _shared(
    call: Callable[..., Any], makers: dict[str, Any], is_fit: bool = False
) -> Callable[..., Any]:
    @functools.wraps(call)
    def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse(self, makers, kwargs.get("callbacks") if is_fit else None)
        with training.shared(is_fit):
            return call(self, *args, **kwargs)

    return changed


def _called(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let each rank do alone what callbacks do, if it is as far as the others."""

    @functools.wraps(method)
    def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not training.is_shared:
            return method(self, *args, **kwargs)
        if training.calls(method.__name__, self, *args):
            with training.alone():
                method(self, *args, **kwargs)
        return None

    return changed


def _refuse(model: Any, makers: dict[str, Any], callbacks: Any) -> None:
    """Raise ``NotImplementedError`` for what cannot go on after a loss."""
    what = ""
    if getattr(model, "run_eagerly", False):
        what = "run_eagerly=True: omit it"
    for kind, make in makers.items():
        name = f"make_{kind}_function"
        if getattr(type(model), name) is not make:
            what = f"{name}() of a model's own: change {kind}_step() instead"
    given = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
    if any(type(each).__name__ == "BackupAndRestore" for each in given):
        what = "BackupAndRestore: omit it, since the ranks that are left have the state"
    if what:
        raise NotImplementedError(f"elastic jobs do not offer {what}, or omit --elastic")
