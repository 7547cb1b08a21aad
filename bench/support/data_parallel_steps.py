"""What all systems of `bench.data_parallel` have: how a rank is asked, and how steps are timed."""

import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

Steps = Callable[[int], list[float]]  # takes so many steps; returns the milliseconds of each
Kinds = dict[str, Steps]  # "reduced", "alone" and, where it can be measured, "exchange"
RATE = 0.01


class Alone:
    """One process that reduces nothing; the others are like it."""

    exchanges = False  # whether `reduced` alone reduces all gradients

    def __init__(self) -> None:
        self.pids = [os.getpid()]
        self.rank = int(os.environ.get("RANK", "0"))

    def scope(self) -> AbstractContextManager[Any]:
        """Where variables are made."""
        return nullcontext()

    def reduced(self, tape: Any, loss: Any, variables: list[Any], scheme: str = "none") -> Any:
        """Return the gradients, averaged over all ranks; `scheme`: how ours sends them."""
        return tape.gradient(loss, variables)

    def batch(self, batch: int) -> int:
        """Return the examples that each rank has in its hands, of `batch` for each."""
        return batch

    def forward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return what computes the losses of a batch, where they are reduced."""
        return function

    def replicated(self, step: Callable[[], Any]) -> Any:
        """Call a step as the system wants it."""
        return step()

    def optimizer(self, keras: Any, scheme: str = "none") -> Any:
        """Return what `fit` uses."""
        return keras.optimizers.SGD(RATE)

    def keras(self) -> Any:
        """Return the Keras that it trains with."""
        import keras

        return keras

    def follow(self, reduces: bool) -> None:
        """Let Keras reduce in what comes, or not."""

    def line(self) -> str:
        """Return the next request; empty at the end."""
        return sys.stdin.readline()


def timed(step: Callable[[], Any]) -> Steps:
    """Return what times each step on its own."""

    def steps(count: int) -> list[float]:
        taken = []
        for _ in range(count):
            start = time.perf_counter()
            step()
            taken.append(1e3 * (time.perf_counter() - start))
        return taken

    return steps
