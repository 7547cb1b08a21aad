"""The library of operations. It also replaces TensorFlow's CPU devices that are made later."""

import functools
from pathlib import Path
from typing import Any

import tensorflow as tf

from rdma_transport import _native, wheels


@functools.cache
def operations() -> Any:
    """Return TensorFlow's module of the operations; raise ``RuntimeError`` if there is none."""
    if problem := wheels.refusal():
        raise RuntimeError(problem)
    file = Path(_native.__file__).parent / "lib" / "librdma_transport_ops.so"
    try:
        return tf.load_op_library(str(file))
    except Exception as error:  # of TensorFlow, or of Python: not an ImportError
        raise RuntimeError(
            f"the operations of rdma_transport cannot be loaded: {error}. Install the package "
            f"again: pip install --force-reinstall --no-deps {wheels.WHEEL}"
        ) from error
