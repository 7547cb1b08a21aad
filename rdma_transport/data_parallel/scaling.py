"""Lets ``fit`` of Keras train with the batch of one process on each rank, for --scale-batch."""

import functools
import math
import sys
import threading
from typing import Any

import tensorflow as tf

from rdma_transport import changes
from rdma_transport.collectives import find_ranks

_KERAS_BATCH = 32  # unless fit() is given another one
_local = threading.local()
_kinds: set[Any] = set()


def follow_keras() -> None:
    """Change ``fit`` of all Keras that are imported. Idempotent."""
    for name in ("keras", "tf_keras"):
        if found := sys.modules.get(name):
            _change(found.Model)


def check(update: str) -> None:
    """Raise ``NotImplementedError`` if an update is of a batch that was not enlarged."""
    if _kinds and not getattr(_local, "scaled", False):
        raise NotImplementedError(
            f"{update} at {changes.place()} is not of fit(): --scale-batch knows the batches of "
            "fit() only. Omit it, and let the program multiply its batch by WORLD_SIZE, a variable "
            "of its environment"
        )


def _change(kind: Any) -> None:
    if kind in _kinds:
        return
    _kinds.add(kind)
    fit = kind.fit

    @functools.wraps(fit)
    def changed(
        self: Any, x: Any = None, y: Any = None, batch_size: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        ranks = find_ranks()
        if isinstance(x, tf.data.Dataset):
            one = _batch_of(x)
            x = x.unbatch().batch(ranks.size * one, drop_remainder=True)
        elif all(hasattr(each, "shape") for each in tf.nest.flatten(x)):
            one = batch_size or _KERAS_BATCH
            batch_size = ranks.size * one
        else:
            raise NotImplementedError(
                f"--scale-batch cannot enlarge the batches that fit() gets from a "
                f"{type(x).__name__}: give arrays or a tf.data.Dataset, or omit it and let the "
                "program multiply its batch by WORLD_SIZE, a variable of its environment"
            )
        if kwargs.get("steps_per_epoch"):
            kwargs["steps_per_epoch"] = math.ceil(kwargs["steps_per_epoch"] / ranks.size)
        if ranks.rank == 0:
            print(
                f"--scale-batch: fit() at {changes.place()} trains with batches of "
                f"{ranks.size * one} examples, {one} for each of {ranks.size} ranks. An epoch has "
                f"1/{ranks.size} of the updates, and the learning rate stays what the program "
                f"says: one that suits the larger batch is often up to {ranks.size} times as high, "
                "after some epochs with less",
                file=sys.stderr,
                flush=True,
            )
        _local.scaled = True
        try:
            return fit(self, x, y, batch_size, *args, **kwargs)
        finally:
            _local.scaled = False

    kind.fit = changed


def _batch_of(dataset: Any) -> int:
    """Return the batch of a dataset, if all its batches have the same."""
    found = {
        spec.shape[0] if spec.shape.rank else None for spec in tf.nest.flatten(dataset.element_spec)
    }
    (one,) = found if len(found) == 1 else (None,)
    if one is None:
        raise NotImplementedError(
            "--scale-batch cannot see how many examples each batch of this dataset has: give "
            "batch() the option drop_remainder=True, or omit --scale-batch and let the program "
            "multiply its batch by WORLD_SIZE, a variable of its environment"
        )
    return int(one)
