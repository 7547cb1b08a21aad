"""Models of Keras 3."""

import functools
import sys
from collections.abc import Callable
from typing import Any

import rdma_transport.tensorflow as rt
from rdma_transport.tensorflow.parallel import is_parallel


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


def _on_all_ranks(call: Callable[..., Any], distribution: Callable[[], Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def changed(model: Any, *args: Any, **kwargs: Any) -> Any:
        if distribution() is None or is_parallel() or not _has_tensors(args, kwargs):
            return call(model, *args, **kwargs)
        return rt.parallel(functools.partial(call, model), name=f"model {model.name!r}")(
            *args, **kwargs
        )

    changed.autograph_info__ = None  # type: ignore[attr-defined]
    return changed


def _has_tensors(args: Any, kwargs: Any) -> bool:
    """Return whether Keras runs a model, and does not look at shapes only."""
    keras = sys.modules["keras"]
    common = sys.modules["keras.src.backend.common.stateless_scope"]
    symbolic = any(
        isinstance(each, keras.KerasTensor) for each in keras.tree.flatten((args, kwargs))
    )
    return not symbolic and not common.in_stateless_scope()
