"""Counters of the transport in this process."""

import json
import re
from typing import Any

from rdma_transport import _native


def stats() -> dict[str, Any]:
    """Return the counters of this process; all are zero if it has no ``rdma`` server.

    Counters start at zero when the process starts. ``docs/counters.md`` lists them all with their
    keys. The other keys:

    ``format``
        a number that increases when a key is removed or changes its meaning
    ``loaded``
        whether this process created an ``rdma`` server
    ``tasks``
        the tasks of the cluster that run in this process
    ``tracing``
        whether a client is recording a timeline of this process
    ``ports``
        one entry for each port of an RDMA card that this process uses, the preferred one first:
        ``name``, ``text`` (with its address), ``active``, ``written_bytes`` and ``read_bytes`` (by
        this process, in memory of peers), ``failures`` (of connections through it)
    ``plan``
        has ``edges``, one entry per edge that this process sends: ``name``, ``source``,
        ``destination``, ``dtype``, ``shape``, ``bytes``, ``mode``, ``planned`` (from the graph),
        ``placement`` (whose memory holds the slots), ``slots``, ``hits``, ``misses``,
        ``staged_bytes``, ``site`` (where its buffers are allocated), ``reason``
    ``peers``
        one entry for each remote ``task``. ``local`` is the task of this process that has this
        peer. ``address`` is empty if no cluster of this process names it. ``incarnation``;
        ``transport`` (``shm``, ``verbs``, ``libfabric``, ``grpc``, ``unreachable``, ``connecting``,
        ``idle``) and its ``reason``; ``linked``; ``lost`` (was linked and is not linked now);
        ``linked_at``, when the last link came up, in seconds since 1970, or None; ``last_error``,
        why a link ended or did not come up; and the counters of the peer

    Thread-safe; takes microseconds.
    """
    return readable(json.loads(_native.stats_json()))


# TensorFlow's numbers of the types that the fabric carries.
_TYPES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 8: "complex64",
    9: "int64", 10: "bool", 11: "qint8", 12: "quint8", 13: "qint32", 14: "bfloat16", 15: "qint16",
    16: "quint16", 17: "uint16", 18: "complex128", 19: "float16", 22: "uint32", 23: "uint64",
    24: "float8_e5m2", 25: "float8_e4m3fn", 29: "int4", 30: "uint4",
}  # fmt: skip


def readable(stats: dict[str, Any]) -> dict[str, Any]:
    """Replace the numbers and keys of the native library by names in the edges."""
    for edge in stats["plan"]["edges"]:
        source, _, destination, name = [*edge.pop("key").split(";"), "", "", ""][:4]
        edge["name"] = name
        edge["source"], edge["destination"] = _task(source), _task(destination)
        edge["dtype"] = _TYPES.get(edge["dtype"], f"type {edge['dtype']}")
        how = "planned from the graph" if edge["planned"] else "its shape has stayed the same"
        edge["reason"] = how if edge["mode"] == "static" else "its shape is not stable yet"
    return stats


def _task(device: str) -> str:
    return re.sub("/replica:[0-9]+", "", device.partition("/device:")[0])
