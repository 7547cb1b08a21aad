"""Measures the time per edge to a task on another host, over gRPC and rdma in turns; prints JSON.

The other host runs `python -m bench.support.member 1 THIS OTHER`.

usage: python -m bench.remote_edges THIS OTHER [--sizes 4096,65536] [--repeat 9]
"""

import json
from contextlib import ExitStack
from typing import Annotated

import typer

from .chains import IDENTITY, Chain
from .references import SHORT_HOPS, measure_chain
from .support.exit import run_command
from .support.member import PROTOCOLS, serve
from .support.options import Repeat, Sizes
from .support.sizes import parse_sizes
from .support.timing import summarize

LONG_HOPS = 6  # a network's edge is slow enough to stand out
HOPS = (SHORT_HOPS, LONG_HOPS)
DEVICES = ["/job:worker/task:0", "/job:worker/task:1"]


def main(
    this: Annotated[str, typer.Argument(help="Use this address of this host.")],
    other: Annotated[str, typer.Argument(help="Connect to this address of the other host.")],
    sizes: Sizes = "4096,65536,1048576",
    repeat: Repeat = 9,
) -> None:
    """Print {"rows": [{"bytes", "wrong", "grpc", "rdma"}], "sent": ...}, times in microseconds."""
    import tensorflow as tf

    import rdma_transport

    tf.compat.v1.disable_eager_execution()
    wanted = parse_sizes(sizes)
    servers = serve(0, [this, other])
    rows = []
    for size in wanted:
        with ExitStack() as stack:
            chains = {
                protocol: Chain(stack, servers[protocol].target, DEVICES, size, HOPS, IDENTITY)
                for protocol in PROTOCOLS
            }
            wrong = sum(chain.wrong(LONG_HOPS) for chain in chains.values())
            edges: dict[str, list[float]] = {protocol: [] for protocol in PROTOCOLS}
            for _ in range(repeat):
                for protocol, chain in chains.items():
                    edges[protocol].append(1e6 * measure_chain(chain, LONG_HOPS)[0])
            times = {protocol: summarize(edges[protocol]).as_dict() for protocol in PROTOCOLS}
            rows.append({"bytes": size, "wrong": wrong, **times})
    stats = rdma_transport.stats()
    print(json.dumps({"rows": rows, "sent": stats["sent"], "peers": stats["peers"]}))


if __name__ == "__main__":
    run_command(main)
