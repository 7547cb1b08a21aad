"""One rank of ``bench.embeddings``: rank 0 looks up rows, or all ranks exchange them.

Each rank reads lines of JSON, a test and how often to repeat it, and answers each by another one:
microseconds of rank 0, or of all that exchange, and the processor time in between.

usage: embedding_rank.py ROWS DIM IDS BATCHES
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

WARM_UP = 2


def zipf(rows: int, ids: int, batches: int) -> Any:
    """Return ids whose frequencies follow Zipf's law, spread over all rows."""
    random = np.random.default_rng(1)
    drawn = random.zipf(1.1, (batches, ids)).astype(np.uint64)
    return (drawn * np.uint64(0x9E3779B97F4A7C15) % np.uint64(rows)).astype(np.int64)


def looked_up(table: Any, batches: Any) -> Callable[[int], Any]:
    """Return a lookup in a function of TensorFlow, from the index of a batch."""
    import tensorflow as tf

    kept = tf.constant(batches)

    @tf.function
    def look_up(index: Any) -> Any:
        return tf.reduce_sum(table.lookup(kept[index])[:1])

    return lambda index: look_up(tf.constant(index)).numpy()


def exchanged(table: Any, batches: Any) -> Callable[[int], Any]:
    """Return the same by collectives: owners get unique ids, copy their rows, and send them."""
    comm = table.communicator
    size, dim = comm.size, table.dim
    own = table.to_numpy()[comm.rank :: size]

    def exchange(index: int) -> Any:
        unique, place = np.unique(batches[index], return_inverse=True)
        asked = [unique[unique % size == owner] for owner in range(size)]
        counts = comm.all_to_all(np.array([len(each) for each in asked], np.int64))
        wanted = [np.empty(count, np.int64) for count in counts]
        comm.exchange(asked, wanted)
        rows = [np.empty((len(each), dim), np.float32) for each in asked]
        comm.exchange([own[each // size] for each in wanted], rows)
        found = np.empty((len(unique), dim), np.float32)
        for owner, each in enumerate(rows):
            found[unique % size == owner] = each
        return found[place]

    return exchange


def main() -> None:
    """Serve until the input ends."""
    rows, dim, ids, count = map(int, sys.argv[1:])
    import rdma_transport.tensorflow as rt
    from rdma_transport.embeddings import Table

    rt.connect()
    table = Table(rows, dim, name="bench")
    comm = table.communicator
    batches = zipf(rows, ids, count)
    tests = {"lookup": looked_up(table, batches), "exchange": exchanged(table, batches)}
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        test, repeat = json.loads(line)
        samples: list[float] = []
        comm.barrier()
        before = time.process_time()
        for turn in range(0 if comm.rank and test == "lookup" else WARM_UP + repeat):
            start = time.perf_counter()
            tests[test](turn % count)
            samples.append(1e6 * (time.perf_counter() - start))
        spent = time.process_time() - before
        comm.barrier()
        print(json.dumps({"us": samples[WARM_UP:], "seconds": spent}), flush=True)


if __name__ == "__main__":
    main()
