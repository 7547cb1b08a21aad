"""XLA, which cannot compile the operations."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import rdma_transport.tensorflow as rt
from rdma_transport.changes import note


def without_xla(make: Callable[..., Any], applies: Callable[[Any], bool]) -> Callable[..., Any]:
    """Change a method that makes a step of a model of Keras 3: without XLA where it `applies`."""

    @functools.wraps(make)
    def changed(self: Any, force: bool = False) -> Any:
        if applies(self) and not self.run_eagerly and self.jit_compile:
            text = f"model {self.name} runs without XLA (jit_compile=False), which cannot compile "
            text += "operations that exchange tensors with other ranks"
            note(text)
            if rt.world().rank == 0:
                warnings.warn(text, stacklevel=2)
            self.jit_compile = False
        return make(self, force)

    return changed
