"""Where a benchmark runs, and the clusters that it measures, each for one protocol."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .report import Result
from .support.hosts import Layout, There, everything_here
from .support.progress import QUIET, Bar

if TYPE_CHECKING:
    from .support.cluster import Cluster

BOTH = ("grpc", "rdma")
JOBS = ("worker", "ps")
STATIC_OFF = {"RDMA_TRANSPORT_STATIC": "off"}
# What can be compared: a protocol, and settings.
WAYS: dict[str, tuple[str, dict[str, str]]] = {
    "grpc": ("grpc", {}),
    "rdma": ("rdma", {}),
    "copying": ("rdma", {"RDMA_TRANSPORT_ZERO_COPY": "off"}),
    "dynamic": ("rdma", STATIC_OFF),
}


@dataclass(frozen=True)
class Where:
    """The protocols to compare, of WAYS, and the hosts; an agent waits on `others`."""

    protocols: tuple[str, ...] = ("rdma",)
    fabric: str = ""  # empty: RDMA_TRANSPORT_FABRIC
    layout: Layout = everything_here
    others: Sequence[There] = ()
    bar: Bar = QUIET
    settings: dict[str, str] = field(default_factory=dict)  # of all tasks

    @property
    def environment(self) -> dict[str, str]:
        """The environment of all tasks."""
        fabric = {"RDMA_TRANSPORT_FABRIC": self.fabric} if self.fabric else {}
        return fabric | self.settings


Measure = Callable[[Where], Result | Iterable[Result]]
"""A benchmark with its options."""


@contextmanager
def clusters(
    where: Where,
    jobs: Mapping[str, int],
    programs: Mapping[str, Sequence[str]] | None = None,
    environments: Mapping[str, dict[str, str]] | None = None,
) -> "Iterator[dict[str, Cluster]]":
    """A cluster of `jobs` for each protocol; if a task dies, so does this process.

    `programs` are those of Cluster; `environments` have what only one protocol's tasks need.
    """
    from .support.cluster import Cluster
    from .support.exit import watched
    from .support.tf_import import import_tensorflow

    where.bar.at(0, "importing TensorFlow")
    import_tensorflow()
    with ExitStack() as stack:
        made: dict[str, Cluster] = {}
        for name in where.protocols:
            where.bar.at(0, f"{name}: starting {sum(jobs.values())} tasks")
            protocol, settings = WAYS[name]
            own = where.environment | settings | (environments or {}).get(name, {})
            cluster = Cluster(dict(jobs), protocol, own, layout=where.layout, programs=programs)
            made[name] = stack.enter_context(cluster)
            stack.callback(watched(cluster))
        yield made
