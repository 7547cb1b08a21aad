"""Reads the bytes of a GraphDef from any supported form of a graph."""

import os
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from graph_analyzer import native, wire
from graph_analyzer.errors import AnalysisError
from graph_analyzer.functions import graph_of
from rdma_transport.files import MAX_TEXT_BYTES, read_file

MAX_BYTES = 2**31
"""Protobuf's own limit: no valid GraphDef is larger."""

_FILES = "a SavedModel directory, or a .pb, .meta or .pbtxt file"
_SCRIPTS = (
    ". On the command line also a Keras model (.keras), or what a script calls NAME: train.py:NAME"
)
_FORMS = f"a tf.Graph, a GraphDef, a concrete function, a Keras model, {_FILES}"
_MESSAGES = ("tensorflow.GraphDef", "tensorflow.MetaGraphDef", "tensorflow.SavedModel")
_TEXT_KINDS = {
    "node": "GraphDef",
    "library": "GraphDef",
    "versions": "GraphDef",
    "meta_info_def": "MetaGraphDef",
    "graph_def": "MetaGraphDef",
    "saved_model_schema_version": "SavedModel",
    "meta_graphs": "SavedModel",
}
_FIRST_FIELD = re.compile(r"(?:\s|#[^\n]*\n)*([a-z_]+)\s*[:{]")


def graph_def_bytes(graph: Any, tags: Collection[str] | None = None) -> bytes:
    """Return the serialized GraphDef of ``graph``. ``analyze`` documents its forms.

    Does not import TensorFlow, except for text files. Raises ``AnalysisError``.
    """
    if isinstance(graph, str | os.PathLike):
        return _from_path(Path(os.fspath(graph)), tags)
    if isinstance(graph, bytes | bytearray | memoryview):
        return _from_binary(memoryview(graph).cast("B"), "the data", tags)
    try:
        return _from_object(graph, tags)
    except AnalysisError:
        raise
    except (ValueError, TypeError, AttributeError) as error:
        raise AnalysisError(f"the graph cannot be serialized: {error}") from error


def _from_object(graph: Any, tags: Collection[str] | None) -> bytes:
    message = getattr(getattr(graph, "DESCRIPTOR", None), "full_name", None)
    if message in _MESSAGES:
        return _from_binary(memoryview(graph.SerializeToString()), "the message", tags)
    if hasattr(graph, "as_graph_def"):
        return _from_object(graph.as_graph_def(), tags)
    if hasattr(graph, "graph") and hasattr(graph, "function_def"):
        return _from_object(graph_of(graph), tags)
    if hasattr(graph, "get_concrete_function"):
        return _from_object(only_concrete(graph), tags)
    raise AnalysisError(f"cannot read a graph from a {type(graph).__name__}; give {_FORMS}")


def only_concrete(function: Any) -> Any:
    """Return the concrete function of a ``tf.function``; raise ``AnalysisError`` if it has more."""
    made = _concrete_functions(function)
    # One that creates variables is traced again without: the last is what runs in each step.
    if len({str(each.structured_input_signature) for each in made}) != 1:
        raise AnalysisError(
            f"this tf.function has {len(made)} concrete functions, but the analyzer needs one. "
            "Give function.get_concrete_function(...) with the arguments of the step; in a script, "
            "traced = step.get_concrete_function(...) for train.py:traced"
        )
    return made[-1]


def _concrete_functions(function: Any) -> list[Any]:
    """Return those of a tf.function. One that takes no arguments, or has a signature, is traced."""
    # a private list; if a version has none, the message above still helps
    listed: Callable[[], list[Any]] = getattr(function, "_list_all_concrete_functions", list)
    try:
        return listed()
    except Exception as error:
        why = [type(error).__name__, *str(error).strip().splitlines()][-1]  # behind lines of code
        raise AnalysisError(f"tracing the function failed: {why.strip()}") from error


def _from_path(path: Path, tags: Collection[str] | None) -> bytes:
    try:
        if path.is_dir():
            return _from_directory(path, tags)
        if path.suffix not in (".pb", ".meta", ".pbtxt"):
            path.stat()
            raise AnalysisError(f"{path}: unsupported file type; give {_FILES}{_SCRIPTS}")
        if path.suffix == ".pbtxt":
            return _from_text(read_file(path, MAX_TEXT_BYTES), path, tags)
        return _from_binary(memoryview(read_file(path, MAX_BYTES)), str(path), tags)
    except (OSError, ValueError) as error:
        if isinstance(error, AnalysisError):
            raise
        why = getattr(error, "strerror", None) or error
        raise AnalysisError(f"{path}: {why}") from error


def _from_directory(path: Path, tags: Collection[str] | None) -> bytes:
    for name in ("saved_model.pb", "saved_model.pbtxt"):
        if (path / name).exists():
            return _from_path(path / name, tags)
    raise AnalysisError(f"{path}: not a SavedModel: the directory has no saved_model.pb")


def _from_text(data: bytes, path: Path, tags: Collection[str] | None) -> bytes:
    text = data.decode("utf-8")
    first = _FIRST_FIELD.match(text)
    kind = _TEXT_KINDS.get(first[1]) if first else None
    if kind is None:
        raise AnalysisError(f"{path}: not a GraphDef, MetaGraphDef or SavedModel")
    try:
        with native.quiet():
            from google.protobuf import text_format
            from tensorflow.core.framework import graph_pb2
            from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2
    except ImportError as error:
        raise AnalysisError(f"{path}: reading a text file needs TensorFlow: {error}") from error

    messages = {
        "GraphDef": graph_pb2.GraphDef,
        "MetaGraphDef": meta_graph_pb2.MetaGraphDef,
        "SavedModel": saved_model_pb2.SavedModel,
    }
    try:
        message = text_format.Parse(text, messages[kind]())
    except (text_format.ParseError, RecursionError) as error:
        raise AnalysisError(f"{path}: not a {kind} in text format: {error}") from error
    return _from_binary(memoryview(message.SerializeToString()), str(path), tags)


def _from_binary(data: memoryview, name: str, tags: Collection[str] | None) -> bytes:
    try:
        found = _graphs_in(data)
    except AnalysisError as error:
        raise AnalysisError(f"{name}: corrupt, or not a graph: {error}") from error
    if isinstance(found, bytes):
        if tags is not None:
            raise AnalysisError(f"{name}: tags choose a meta graph of a SavedModel; this is none")
        graph = found
    else:
        graph = _choose(found, tags, name).graph_def
    if not graph:
        raise AnalysisError(f"{name}: has no graph, or a graph without nodes")
    if len(graph) >= MAX_BYTES:
        raise AnalysisError(f"{name}: the GraphDef has {len(graph)} bytes; the maximum is 2 GiB")
    return graph


def _graphs_in(data: memoryview) -> bytes | list[wire.MetaGraph]:
    if len(data) == 0 or wire.is_graph_def(data):
        return bytes(data)
    if wire.is_saved_model(data):
        return wire.meta_graphs(data)
    return wire.meta_graph(data).graph_def


def _choose(found: list[wire.MetaGraph], tags: Collection[str] | None, name: str) -> wire.MetaGraph:
    chosen = [one for one in found if tags is None or set(one.tags) == set(tags)]
    if len(chosen) == 1:
        return chosen[0]
    have = "; ".join(",".join(one.tags) or "(no tags)" for one in found) or "none"
    wanted = "" if tags is None else f" with the tags {','.join(sorted(tags))}"
    raise AnalysisError(
        f"{name}: there are {len(chosen)} meta graphs{wanted}, but the analyzer needs one. "
        f"Choose one by its tags: {have}"
    )
