"""Reads enough of protobuf's wire format to find the kind of a graph file.

Importing TensorFlow for this would take seconds. The analyzer parses the graph itself.
Format: https://protobuf.dev/programming-guides/encoding/. Field numbers: TensorFlow's graph.proto,
node_def.proto, meta_graph.proto and saved_model.proto.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from graph_analyzer.errors import AnalysisError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_NODE_NAME = re.compile(rb"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")
_OP_TYPE = re.compile(rb"[A-Za-z_][A-Za-z0-9_.>/-]*")


@dataclass(frozen=True)
class MetaGraph:
    """One MetaGraphDef: its tags, and its serialized GraphDef."""

    tags: tuple[str, ...]
    graph_def: bytes


def fields(data: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Yield (field number, value) of one message; raise ``AnalysisError`` if it is malformed."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise AnalysisError("a field has number 0")
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise AnalysisError(f"a field has wire type {kind}")
        if size > len(data) - at:
            raise AnalysisError("the data ends in the middle of a field")
        yield number, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise AnalysisError("the data ends in the middle of a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise AnalysisError("a number is longer than 10 bytes")


def is_saved_model(data: memoryview) -> bool:
    """Whether the data starts like a SavedModel: with a version number."""
    first = next(fields(data), None)
    return first is not None and first[0] == 1 and isinstance(first[1], int)


def is_graph_def(data: memoryview) -> bool:
    """Whether the first value of field 1 is a node, with a name and an op type."""
    for number, value in fields(data):
        if number == 1:
            return isinstance(value, memoryview) and _is_node(value)
    return False


def _is_node(data: memoryview) -> bool:
    found: dict[int, bytes] = {}
    try:
        for number, value in fields(data):
            if number in (1, 2) and isinstance(value, memoryview):
                found[number] = bytes(value)
    except AnalysisError:
        return False
    name, op = found.get(1, b""), found.get(2, b"")
    return bool(_NODE_NAME.fullmatch(name) and _OP_TYPE.fullmatch(op))


def meta_graphs(data: memoryview) -> list[MetaGraph]:
    """Return all MetaGraphDefs of a SavedModel."""
    return [
        meta_graph(value)
        for number, value in fields(data)
        if number == 2 and isinstance(value, memoryview)
    ]


def meta_graph(data: memoryview) -> MetaGraph:
    """Read one MetaGraphDef; ``graph_def`` is empty if it has no graph."""
    tags: list[str] = []
    graphs: list[memoryview] = []
    for number, value in fields(data):
        if number == 1 and isinstance(value, memoryview):
            tags += [
                bytes(tag).decode("utf-8", "replace")
                for inner, tag in fields(value)
                if inner == 4 and isinstance(tag, memoryview)
            ]
        elif number == 2 and isinstance(value, memoryview):
            graphs.append(value)
    # concatenating serialized messages is how protobuf merges repeated occurrences
    return MetaGraph(tuple(tags), b"".join(graphs))
