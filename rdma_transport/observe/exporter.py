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
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from rdma_transport import __version__, _native, counters, live
from rdma_transport.command_line import split_place
from rdma_transport.counters import Counter
from rdma_transport.observe import reasons
from rdma_transport.observe.samples import short, take

_PREFIX = "rdma_transport_"
_OF_PROCESS = ("job_id", "task")
_JOB_IDS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")  # of schedulers
_OF_PEER = (*_OF_PROCESS, "peer")
_BUILD = "Versions of this rdma_transport and of the TensorFlow that it was built for."
_VERSIONS = (__version__, _native.TENSORFLOW_VERSION)


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
    """Parse ``127.0.0.1:9449``, ``[::1]:9449`` or ``9449``; raise ``ValueError``."""
    place = split_place(text)
    if place is None:
        raise ValueError(f"{text}: give PORT or HOST:PORT, such as 127.0.0.1:9449")
    host, port = place
    return Address(host or "0.0.0.0", port)


def job_of(pid: int) -> str:
    """Return the scheduler's ID of the job of a process, or without one the ID of the process.

    A task that is started again keeps its series if it is of the same job.
    """
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return str(pid)
    found = dict(part.partition("=")[::2] for part in text.split("\0"))
    return next((found[name] for name in _JOB_IDS if found.get(name)), str(pid))


class Servers(Collector):
    """Asks all servers of this user on each scrape."""

    def __init__(self) -> None:
        self._tasks: dict[int, str] = {}  # of each process that ever answered
        self._jobs: dict[int, str] = {}

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of all servers that answer."""
        sample = take(live.servers())
        asked = (*sample.answers, *sample.silent)
        self._jobs = {pid: self._jobs.get(pid) or job_of(pid) for pid in asked}
        self._tasks |= {
            pid: ",".join(map(short, stats["tasks"])) for pid, stats in sample.answers.items()
        }
        up = (((self._jobs[pid], self._tasks.get(pid, "")), pid in sample.answers) for pid in asked)
        yield _family("up", "Whether the process answered.", _OF_PROCESS, up, min)
        yield _family("build_info", _BUILD, ("version", "tensorflow"), [(_VERSIONS, 1)])
        processes: Labelled = [
            ((self._jobs[pid], self._tasks[pid]), stats) for pid, stats in sample.answers.items()
        ]
        peers: Labelled = [
            ((labels[0], short(peer["local"]), short(peer["task"])), peer)
            for labels, stats in processes
            for peer in stats["peers"]
        ]
        yield from _counted(counters.PROCESS, _OF_PROCESS, processes)
        yield from _counted(counters.PEER, _OF_PEER, peers)
        yield from _links(peers)
        yield from _ports(
            [
                ((*labels, port["name"]), port)
                for labels, stats in processes
                for port in stats["ports"]
            ]
        )


Labels = tuple[str, ...]
Labelled = list[tuple[Labels, dict[str, Any]]]


def _counted(table: Iterable[Counter], names: Labels, counted: Labelled) -> Iterable[Metric]:
    for counter in table:
        if counter.metric:
            values = (
                ((*labels, *own), value)
                for labels, stats in counted
                for own, value in _labelled(counter, stats)
            )
            make = _histogram if counter.kind == "histogram" else _family
            yield make(counter.metric, counter.meaning, (*names, *counter.labels), values)


def _labelled(counter: Counter, stats: dict[str, Any]) -> Iterable[tuple[Labels, Any]]:
    """Yield the values of a counter, with codes in the place of sentences."""
    known = reasons.codes(counter.metric)
    yield from (((code,), 0) for code in known)  # so that a first increase is seen
    for own, value in counter.values(stats):
        yield (reasons.code_of(counter.metric, own[0]),) if known else own, value


def _links(peers: Labelled) -> Iterable[Metric]:
    linked = (((*labels, peer["transport"]), peer["linked"]) for labels, peer in peers)
    meaning = "Whether a fabric reaches the peer."
    yield _family("peer_linked", meaning, (*_OF_PEER, "transport"), linked, max)
    lost = ((labels, peer["lost"]) for labels, peer in peers)
    yield _family("peer_lost", "Whether the link to the peer was lost.", _OF_PEER, lost, max)
    since = ((labels, peer["linked_at"]) for labels, peer in peers if peer["linked"])
    meaning = "When the last link to the peer came up."
    yield _family("peer_linked_timestamp_seconds", meaning, _OF_PEER, since, max)


def _ports(ports: Labelled) -> Iterable[Metric]:
    for key, name, meaning in (
        ("active", "port_active", "Whether the port of the RDMA card is active."),
        ("written_bytes", "port_written_bytes_total", "Written through the port, in bytes."),
        ("read_bytes", "port_read_bytes_total", "Read through the port, in bytes."),
        ("failures", "port_failures_total", "Failures of connections through the port."),
    ):
        values = ((labels, port[key]) for labels, port in ports)
        yield _family(name, meaning, (*_OF_PROCESS, "port"), values)


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


def _histogram(
    name: str, meaning: str, names: Labels, values: Iterable[tuple[Labels, dict[str, Any]]]
) -> Metric:
    """Make one metric of histograms, merged as in ``_family()``."""
    merged: dict[Labels, tuple[dict[str, int], float]] = {}
    for labels, value in values:
        buckets, total = merged.get(labels, ({}, 0.0))
        counts = {bound: count + buckets.get(bound, 0) for bound, count in value["buckets"].items()}
        merged[labels] = counts, total + value["sum"]
    family = HistogramMetricFamily(_PREFIX + name, meaning, labels=names)
    for labels, (counts, total) in merged.items():
        family.add_metric(labels, list(counts.items()), total)
    return family


def _registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(Servers())
    return registry


def text() -> str:
    """Return the current metrics."""
    return generate_latest(_registry()).decode()


def write(path: Path) -> None:
    """Write the metrics atomically, for node_exporter's textfile collector."""
    write_to_textfile(os.fspath(path), _registry())


def serve(address: Address) -> tuple[Address, Thread]:
    """Serve scrapes on a new thread; return the address, with the port chosen if it was 0.

    Raises ``OSError`` if it cannot listen on the address.
    """
    server, thread = start_http_server(address.port, addr=address.host, registry=_registry())
    return Address(address.host, server.server_port), thread
