"""Building and running graphs over a cluster, from the test's process."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from bench.support.cluster import Cluster

v1 = tf.compat.v1
A, B, C = "/job:a/task:0", "/job:b/task:0", "/job:c/task:0"


def config() -> Any:
    """Without the optimizers, which would move or remove the edges under test."""
    made = v1.ConfigProto(intra_op_parallelism_threads=1)
    made.graph_options.rewrite_options.disable_meta_optimizer = True
    made.graph_options.optimizer_options.opt_level = -1
    return made


class Graph:
    """A graph built by `build()`, with a session on `cluster`'s task a.

    With `names`, the session brings a cluster of its own, which gives the tasks other names.
    """

    def __init__(
        self,
        cluster: Cluster,
        build: Callable[[], Any],
        names: dict[str, list[str]] | None = None,
    ) -> None:
        settings = config()
        target = cluster.target("a") if names is None else "grpc://" + names["a"][0]
        if names is not None:
            settings.cluster_def.CopyFrom(tf.train.ClusterSpec(names).as_cluster_def())
        self.graph = tf.Graph()
        with self.graph.as_default():
            v1.set_random_seed(7)
            self.fetches = build()
            self.initializer = v1.global_variables_initializer()
        self.session = v1.Session(target, graph=self.graph, config=settings)
        self.session.run(self.initializer)

    def run(self, fetches: Any = None, feed: Any = None, **options: Any) -> Any:
        run_options = v1.RunOptions(**options) if options else None
        return self.session.run(
            self.fetches if fetches is None else fetches, feed_dict=feed, options=run_options
        )

    def __enter__(self) -> "Graph":
        return self

    def __exit__(self, *_: object) -> None:
        # TensorFlow's close() waits forever for a task that died, over gRPC as well.
        closing = threading.Thread(target=self.session.close, daemon=True)
        closing.start()
        closing.join(5)


def same_bits(left: Any, right: Any) -> bool:
    """Whether two fetched structures are equal bit for bit."""
    flat_left, flat_right = tf.nest.flatten(left), tf.nest.flatten(right)
    return len(flat_left) == len(flat_right) and all(
        (x := np.asarray(a)).dtype == (y := np.asarray(b)).dtype
        and x.shape == y.shape
        and (x.tolist() == y.tolist() if x.dtype == object else x.tobytes() == y.tobytes())
        for a, b in zip(flat_left, flat_right, strict=True)
    )


def assert_equal_over_both(
    clusters: Mapping[str, Cluster], build: Callable[[], Any], steps: int = 1, feeds: Any = None
) -> Any:
    """Run the same graph over gRPC and over rdma; the results must be equal bit for bit."""
    results = {}
    for protocol, cluster in clusters.items():
        with Graph(cluster, build) as graph:
            if feeds is None:
                results[protocol] = [graph.run() for _ in range(steps)]
            else:
                feed_key, values = feeds
                results[protocol] = [
                    graph.run(feed={graph.graph.get_tensor_by_name(feed_key): value})
                    for value in values
                ]
    assert same_bits(results["grpc"], results["rdma"])
    return results["rdma"]
