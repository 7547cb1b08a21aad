"""Prometheus metrics of running tasks: served over HTTP, as text, or in a file."""

import ipaddress
import operator
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    generate_latest,
    start_http_server,
    write_to_textfile,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rdma_transport import live
from rdma_transport.observe.samples import short, take

FILE_NAME = "rdma_transport.prom"
_PREFIX = "rdma_transport_"
_OF_PROCESS = ("pid", "task")
_OF_PEER = (*_OF_PROCESS, "peer")
_WAYS = ("sent", "received")

# name: (key in the answer, help); a counter's name ends with _total
_WHOLE = {
    "registrations_total": (
        "registrations",
        "Memory slabs ever registered. Does not grow in a steady job.",
    ),
    "regions": ("live_regions", "Registered memory slabs."),
    "region_bytes": ("region_bytes", "Bytes of registered memory slabs."),
    "arena_used_bytes": ("arena.used_bytes", "Bytes of tensors in registered memory."),
    "arena_limit_bytes": ("arena.limit_bytes", "Maximum bytes of registered memory for tensors."),
    "arena_refused_total": ("arena.refused", "Allocations refused because the arena was full."),
    "copied_bytes_total": ("copied_bytes", "Bytes copied, without those in notifications."),
    "staged_tensors_total": ("staged_tensors", "Tensors that the sender copied before the send."),
    "plan_hits_total": ("plan.hits", "Tensors sent through a slot of a static edge."),
    "plan_promotions_total": ("plan.promotions", "Edges that became static."),
    "plan_demotions_total": ("plan.demotions", "Edges that stopped being static."),
    "slot_allocations_total": ("plan.slot_allocations", "Slots ever agreed on with a peer."),
    "unclaimed_tensors": ("unclaimed_tensors", "Tensors that arrived and are not requested yet."),
    "late_tensors_total": ("late_tensors", "Tensors that arrived after their step ended."),
}
_NAMED = {
    "plan_misses_total": ("plan.misses", "reason", "Tensors of static edges that had no slot."),
    "fallbacks_total": ("fallback_reasons", "reason", "Tensors that fell back to gRPC."),
    "errors_total": ("errors", "kind", "Errors of the transport."),
}
_PEER = {
    "peer_links_total": ("links", "Links to the peer that came up. Above 1: it reconnected."),
    "peer_outstanding_tensors": ("outstanding_tensors", "Tensors that the peer may still read."),
    "peer_slots": ("slots.agreed", "Slots of static edges to the peer."),
    "peer_slots_busy": ("slots.busy", "Slots at the peer that it has not released."),
    "peer_ring_bytes": ("ring.capacity_bytes", "Capacity of the notification ring to the peer."),
    "peer_ring_used_bytes": ("ring.used_bytes", "Bytes in the ring that the peer has not read."),
    "peer_ring_waiting_bytes": ("ring.waiting_bytes", "Bytes that wait for space in the ring."),
}


@dataclass(frozen=True)
class Address:
    """An address to listen on."""

    host: str
    port: int

    @property
    def text(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_address(text: str) -> Address:
    """Parse ``127.0.0.1:9449``, ``[::1]:9449`` or ``:9449``; raise ``ValueError``."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"{text!r} is not an address with a port, such as 127.0.0.1:9449")
    return Address(host.strip("[]") or "0.0.0.0", int(port))


class Servers(Collector):
    """Asks all servers of this user on each scrape."""

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of all servers that answer."""
        sample = take(live.servers())
        asked = (*sample.answers, *sample.silent)
        up = (((str(pid),), pid in sample.answers) for pid in asked)
        yield _family("up", "Whether the process answered.", ("pid",), up)
        processes: Labelled = [
            ((str(pid), ",".join(map(short, stats["tasks"]))), stats)
            for pid, stats in sample.answers.items()
        ]
        yield from _of_processes(processes)
        yield from _of_peers(
            [
                ((labels[0], short(peer["local"]), short(peer["task"])), peer)
                for labels, stats in processes
                for peer in stats["peers"]
            ]
        )


Labels = tuple[str, ...]
Labelled = list[tuple[Labels, dict[str, Any]]]


def _of_processes(processes: Labelled) -> Iterable[Metric]:
    for name, (where, meaning) in _WHOLE.items():
        values = ((labels, _at(stats, where)) for labels, stats in processes)
        yield _family(name, meaning, _OF_PROCESS, values)
    for name, (where, label, meaning) in _NAMED.items():
        values = (
            ((*labels, key), count)
            for labels, stats in processes
            for key, count in _at(stats, where).items()
        )
        yield _family(name, meaning, (*_OF_PROCESS, label), values)
    for way in _WAYS:
        for unit in ("elements", "bytes"):
            meaning = f"{unit.capitalize()} {way} by tf.data service."
            values = ((labels, stats["data_service"][way][unit]) for labels, stats in processes)
            yield _family(f"data_service_{way}_{unit}_total", meaning, _OF_PROCESS, values)


def _of_peers(peers: Labelled) -> Iterable[Metric]:
    for way in _WAYS:
        for unit in ("tensors", "bytes"):
            meaning = f"{unit.capitalize()} {way}, by peer and mode."
            values = (
                ((*labels, mode), counts[unit])
                for labels, peer in peers
                for mode, counts in peer[way].items()
            )
            yield _family(f"{way}_{unit}_total", meaning, (*_OF_PEER, "mode"), values)
    for name, (where, meaning) in _PEER.items():
        values = ((labels, _at(peer, where)) for labels, peer in peers)
        yield _family(name, meaning, _OF_PEER, values)
    linked = (((*labels, peer["transport"]), peer["linked"]) for labels, peer in peers)
    meaning = "Whether a fabric reaches the peer."
    yield _family("peer_linked", meaning, (*_OF_PEER, "transport"), linked, max)
    lost = ((labels, peer["lost"]) for labels, peer in peers)
    yield _family("peer_lost", "Whether the link to the peer was lost.", _OF_PEER, lost, max)
    since = ((labels, peer["linked_at"]) for labels, peer in peers if peer["linked"])
    meaning = "When the last link to the peer came up."
    yield _family("peer_linked_timestamp_seconds", meaning, _OF_PEER, since, max)


def _family(
    name: str,
    meaning: str,
    names: Labels,
    values: Iterable[tuple[Labels, float]],
    together: Callable[[float, float], float] = operator.add,
) -> Metric:
    """Make one metric. Servers with equal labels are merged, because labels must be unique."""
    merged: dict[Labels, float] = {}
    for labels, value in values:
        merged[labels] = together(merged[labels], value) if labels in merged else value
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = kind(_PREFIX + name.removesuffix("_total"), meaning, labels=names)
    for labels, value in merged.items():
        family.add_metric(labels, value)
    return family


def _at(stats: dict[str, Any], where: str) -> Any:
    found: Any = stats
    for key in where.split("."):
        found = found[key]
    return found


def _registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(Servers())
    return registry


def text() -> str:
    """Return the current metrics."""
    return generate_latest(_registry()).decode()


def write(directory: Path) -> None:
    """Write the metrics atomically, for node_exporter's textfile collector."""
    write_to_textfile(os.fspath(directory / FILE_NAME), _registry())


def serve(address: Address) -> tuple[Address, Thread]:
    """Serve scrapes on a new thread; return the address, with the port chosen if it was 0.

    Raises ``OSError`` if it cannot listen on the address.
    """
    server, thread = start_http_server(address.port, addr=address.host, registry=_registry())
    return Address(address.host, server.server_port), thread
