"""Makes the plan of a graph, with the native analyzer."""

from collections.abc import Collection
from typing import Any

from graph_analyzer import native
from graph_analyzer.clusters import task_counts
from graph_analyzer.functions import is_model, training_step, worker_of
from graph_analyzer.plan import Plan
from graph_analyzer.sources import graph_def_bytes
from rdma_transport.units import parse_size


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
    ``tf.function`` with one concrete function, a Keras model, or the path of a SavedModel
    directory, of a binary ``.pb`` (GraphDef, MetaGraphDef, SavedModel), ``.meta`` or ``.pbtxt``
    file. ``tags`` selects a meta graph of a SavedModel that has several.

    Variables that a function captures, and those of a model, are on the tasks on which they were
    created. Of a model, the plan is that of one worker's training step, whose loss is the sum of
    the outputs. If the variables of a model are on no task, the parameter servers (job ``ps``) hold
    them in turn.

    ``cluster``: a dict or JSON from job names to counts or lists of addresses; a
    ``tf.train.ClusterSpec``; a string such as ``ps=1,worker=2``; or a complete ``TF_CONFIG``.

    ``arena_limit`` and ``inline_limit`` are bytes or strings such as ``4GiB``. The defaults are the
    settings ``RDMA_TRANSPORT_ARENA_SIZE`` and ``RDMA_TRANSPORT_INLINE_MAX``. Operations without a
    device run on ``default_device``, such as ``/job:worker/task:0``, which is the default for a
    model if the cluster has workers. If no tensor crosses, ``Plan.why_empty`` says why.

    Raises ``AnalysisError`` for invalid input. Files of 2 GiB or more are rejected.
    """
    tasks = task_counts(cluster)
    if is_model(graph):
        graph = training_step(graph, tasks)
        default_device = default_device or worker_of(tasks)
    limits = [None if limit is None else parse_size(limit) for limit in (arena_limit, inline_limit)]
    data = graph_def_bytes(graph, tags)
    return Plan.from_json(native.analyze(data, tasks, default_device, *limits))
