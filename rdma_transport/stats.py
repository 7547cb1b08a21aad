"""Counters of the transport in this process."""

import json
import re
from typing import Any, TypedDict, cast

from rdma_transport import _native


class Tensors(TypedDict):
    """Counted tensors."""

    tensors: int
    bytes: int


class Histogram(TypedDict):
    """Durations: ``buckets`` has their number up to each bound in seconds, the last is ``+Inf``."""

    buckets: dict[str, int]
    count: int
    sum: float


class Modes(TypedDict):
    """Tensors by mode."""

    static: Tensors
    dynamic: Tensors
    inline: Tensors
    grpc: Tensors


class ModeSeconds(TypedDict):
    """Durations by mode."""

    static: Histogram
    dynamic: Histogram
    inline: Histogram
    grpc: Histogram


class OperationSeconds(TypedDict):
    """Durations by operation of the fabric."""

    read: Histogram
    write: Histogram


class Elements(TypedDict):
    """Counted elements of tf.data service."""

    elements: int
    bytes: int


class DataService(TypedDict):
    """The replies of tf.data service."""

    sent: Elements
    received: Elements


class Direct(TypedDict):
    """Memory of accelerators that cards reach."""

    registrations: int
    refused: int
    registered_bytes: int


class Arena(TypedDict):
    """Registered memory for tensors."""

    limit_bytes: int
    capacity_bytes: int
    used_bytes: int
    refused: int


class Edge(TypedDict):
    """An edge that this process sends."""

    name: str
    source: str
    destination: str
    dtype: str
    shape: list[int]
    bytes: int
    mode: str
    planned: bool
    """From the graph."""
    placement: str
    """Whose memory holds the slots."""
    slots: int
    hits: int
    misses: int
    staged_bytes: int
    site: str
    """Where its buffers are allocated."""
    reason: str


class EdgePlan(TypedDict):
    """The plan of the edges, and what became of it."""

    hits: int
    misses: dict[str, int]
    promotions: int
    demotions: int
    slot_allocations: int
    pools: int
    pool_blocks: int
    pool_bytes: int
    pool_blocks_ever: int
    staged_bytes_by_site: dict[str, int]
    edges: list[Edge]


class StepCalls(TypedDict):
    """Calls that start a step on another task, by transport."""

    fabric: int
    grpc: int


class Port(TypedDict):
    """A port of an RDMA card."""

    name: str
    text: str
    """With its address."""
    active: bool
    written_bytes: int
    """By this process, in memory of peers."""
    read_bytes: int
    failures: int
    """Of connections through it."""


class Slots(TypedDict):
    """Slots of static edges."""

    agreed: int
    busy: int


class Ring(TypedDict):
    """The notifications on their way to a peer."""

    capacity_bytes: int
    used_bytes: int
    waiting_bytes: int


class Peer(TypedDict):
    """A remote task."""

    task: str
    local: str
    """The task of this process that has this peer."""
    address: str
    """Empty if no cluster of this process names it."""
    incarnation: str
    transport: str
    """Shm, verbs, libfabric, grpc, unreachable, connecting or idle."""
    reason: str
    linked: bool
    lost: bool
    """Was linked and is not linked now."""
    linked_at: float | None
    """When the last link came up, in seconds since 1970."""
    last_error: str
    """Why a link ended or did not come up."""
    links: int
    sent: Modes
    received: Modes
    outstanding_tensors: int
    slots: Slots
    ring: Ring


class Stats(TypedDict):
    """What ``stats()`` returns."""

    format: int
    """Increases when a key is removed or changes its meaning."""
    loaded: bool
    """Whether this process created an rdma server."""
    tasks: list[str]
    """Of the cluster that run in this process."""
    sent: Modes
    received: Modes
    receive_seconds: ModeSeconds
    transfer_seconds: OperationSeconds
    data_service: DataService
    copied_bytes: int
    staged_tensors: int
    inline_copied_bytes: int
    device_copied_bytes: int
    device_direct_bytes: int
    direct: Direct
    registrations: int
    live_regions: int
    region_bytes: int
    outstanding_tensors: int
    unclaimed_tensors: int
    late_tensors: int
    arena: Arena
    plan: EdgePlan
    fallback_reasons: dict[str, int]
    step_calls: StepCalls
    collectives: dict[str, int]
    direct_reductions: dict[str, int]
    ring_reasons: dict[str, int]
    errors: dict[str, int]
    tracing: bool
    """Whether a client is recording a timeline of this process."""
    ports: list[Port]
    """Of RDMA cards that this process uses, the preferred one first."""
    peers: list[Peer]


def stats() -> Stats:
    """Return the counters of this process; all are zero if it has no ``rdma`` server.

    Counters start at zero when the process starts. ``docs/counters.md`` lists them all with their
    keys. Thread-safe; takes microseconds.
    """
    return cast("Stats", readable(json.loads(_native.stats_json())))


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
        how = "planned from the graph" if edge["planned"] else "it has carried this shape often"
        edge["reason"] = how if edge["mode"] == "static" else "it has carried this shape too rarely"
    return stats


def _task(device: str) -> str:
    return re.sub("/replica:[0-9]+", "", device.partition("/device:")[0])
