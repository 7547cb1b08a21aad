"""Files that TensorFlow and Keras write: rank 0 does, and the other ranks wait for it."""

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.checkpoint import checkpoint, checkpoint_management
from tensorflow.python.ops import summary_ops_v2
from tensorflow.python.saved_model import save as saved_model

import rdma_transport.tensorflow as rt
from rdma_transport.changes import note
from rdma_transport.collectives.membership import is_elastic
from rdma_transport.keras.current import applies, distribution
from rdma_transport.keras.elastic import Call, training
from rdma_transport.tensorflow.parallel import not_parallel

_local = threading.local()


@functools.cache
def follow_tensorflow() -> None:
    """Let rank 0 write checkpoints, saved models and summaries. Once."""
    _change(checkpoint.TrackableSaver, "save")
    _change_everywhere("saved_model", saved_model, "save", "save", by_rank_0)
    management: Any = checkpoint_management
    _change(management, "update_checkpoint_state_internal")
    management._delete_file_if_exists = _on_rank_0(management._delete_file_if_exists)
    _change_everywhere(
        "summary", summary_ops_v2, "create_file_writer_v2", "create_file_writer", _writer
    )


def follow_keras(keras: Any) -> None:
    """Let rank 0 write the files of a Keras."""
    for name in ("save", "save_weights", "export"):
        _change(keras.Model, name)
    _change(keras.models, "save_model")
    if hasattr(keras, "saving"):
        keras.saving.save_model = keras.models.save_model
    callbacks = keras.callbacks
    for callback in (callbacks.ModelCheckpoint, callbacks.BackupAndRestore):
        _change(callback, "_save_model")
    if keras.__name__ == "keras":
        _change(callbacks.BackupAndRestore, "on_train_end")
        archive: Any = keras.export.ExportArchive
        archive.add_endpoint = _whole(archive.add_endpoint)
        _change(archive, "write_out")
    else:
        state = sys.modules["tf_keras.src.distribute.worker_training_state"]
        _change(state.WorkerTrainingState, "delete_backup")
    callbacks.CSVLogger.on_train_begin = _to_nothing(callbacks.CSVLogger.on_train_begin)
    _change(callbacks.TensorBoard, "_start_profiler")


def _change_everywhere(
    face: str, source: Any, name: str, public: str, change: Callable[..., Any]
) -> None:
    """Change a function where it is defined, and in the public modules that have it.

    A later ``import tensorflow.summary``, as Keras has it, makes that module anew.
    """
    changed = change(getattr(source, name))
    setattr(source, name, changed)
    for module in (getattr(tf, face), getattr(tf.compat.v2, face)):
        setattr(module, public, changed)


def _change(owner: Any, name: str) -> None:
    if hasattr(owner, name):
        setattr(owner, name, by_rank_0(getattr(owner, name)))


def _is_inside() -> bool:
    """Return whether this thread writes already, which the other ranks wait for."""
    return getattr(_local, "inside", False)


@contextmanager
def _writing() -> Iterator[None]:
    _local.inside = True
    try:
        with not_parallel():
            yield
    finally:
        _local.inside = False


def by_rank_0(write: Callable[..., Any]) -> Callable[..., Any]:
    """Change a function that writes files: rank 0 calls it; all return, or raise, when it did."""

    @functools.wraps(write)
    def changed(*args: Any, **kwargs: Any) -> Any:
        elastic = is_elastic() and distribution() is not None
        if _is_inside() or not (elastic or applies()):
            return write(*args, **kwargs)
        note(f"{write.__qualname__}() writes on rank 0 only")
        if not elastic:
            return together(*args, **kwargs)
        if training.can_wait:
            return training.step(Call(lambda: together(*args, **kwargs)), None)
        if not training.writes:
            return None
        with _writing():
            return write(*args, **kwargs)

    def together(*args: Any, **kwargs: Any) -> Any:
        result = failure = None
        if rt.world().rank == 0:
            try:
                with _writing():
                    result = write(*args, **kwargs)
            except Exception as error:
                failure = error
        told = result.numpy() if isinstance(result, tf.Tensor) else result  # a path, if anything
        told = told if isinstance(told, (str, bytes)) else None
        told, problem = rt.communicator().broadcast_object((told, failure and repr(failure)), 0)
        if failure is not None:
            raise failure
        if problem is not None:
            raise OSError(f"{write.__qualname__}() failed on rank 0: {problem}")
        return result if rt.world().rank == 0 else told

    return changed


def _whole(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def changed(*args: Any, **kwargs: Any) -> Any:
        with not_parallel():
            return function(*args, **kwargs)

    return changed


def _is_writer() -> bool:
    if distribution() is None:
        return True
    return training.writes if is_elastic() else rt.world().rank == 0


def _on_rank_0(delete: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(delete)
    def changed(*args: Any) -> None:
        if _is_writer():
            delete(*args)

    return changed


def _writer(create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    def changed(*args: Any, **kwargs: Any) -> Any:
        return create(*args, **kwargs) if _is_writer() else tf.summary.create_noop_writer()

    return changed


def _to_nothing(begin: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(begin)
    def changed(self: Any, *args: Any, **kwargs: Any) -> None:
        if not _is_writer():
            self.filename = os.devnull
        begin(self, *args, **kwargs)

    return changed
