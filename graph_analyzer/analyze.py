"""Ask the native analyzer for the plan of a graph."""

import json
from collections.abc import Collection
from typing import Any

from graph_analyzer import native
from graph_analyzer.clusters import task_counts
from graph_analyzer.plan import Plan
from graph_analyzer.sources import graph_def_bytes
from graph_analyzer.units import parse_size


def analyze(
    graph: Any,
    cluster: Any,
    *,
    arena_limit: int | str | None = None,
    inline_limit: int | str | None = None,
    default_device: str = "",
    tags: Collection[str] | None = None,
) -> Plan:
    """Plan every tensor of ``graph`` that crosses between tasks of ``cluster``.

    ``graph``: a ``tf.Graph``, a GraphDef (message or serialized), a concrete function, a
    ``tf.function`` with one concrete function, or the path of a SavedModel directory, of a binary
    ``.pb`` (GraphDef, MetaGraphDef, SavedModel), ``.meta`` or ``.pbtxt`` file. Of a SavedModel
    with several meta graphs, ``tags`` chooses one.

    ``cluster``: job names to counts, or to lists of addresses, as a dict or JSON; a
    ``tf.train.ClusterSpec``; the text ``ps=1,worker=2``; or the whole of a ``TF_CONFIG``.

    ``arena_limit`` and ``inline_limit`` are bytes, or texts such as ``4GiB``; where ``None``, the
    settings ``RDMA_TRANSPORT_ARENA_SIZE`` and ``RDMA_TRANSPORT_INLINE_MAX`` hold.
    ``default_device`` is where ops without a device run, such as ``/job:worker/task:0``.

    Raises ``AnalysisError`` for anything that cannot be used; nothing is changed then. Files of
    2 GiB or more are refused. TensorFlow is imported only for ``.pbtxt``.
    """
    request: dict[str, Any] = {"cluster": task_counts(cluster), "default_device": default_device}
    for name, limit in (("arena_limit", arena_limit), ("inline_limit", inline_limit)):
        if limit is not None:
            request[name] = parse_size(limit)
    data = graph_def_bytes(graph, tags)
    return Plan.from_json(native.analyze(data, json.dumps(request)))
