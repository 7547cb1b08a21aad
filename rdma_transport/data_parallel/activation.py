"""Makes a Python program for one process take part in a job, when it starts and when it imports.

Imports neither TensorFlow nor NumPy: programs that do not, need not wait for them.
"""

import os
import random
import sys
from typing import Any

from rdma_transport import changes
from rdma_transport.data_parallel.imports import Hook, after_import
from rdma_transport.data_parallel.options import take
from rdma_transport.elastic import MEETING

# TensorFlow's own for the graph where a program seeds operations only: those keep their numbers.
_TENSORFLOW_SEED = 87654321
_HOROVOD = (
    "this program is written for Horovod, and so divides its work among ranks itself: start it "
    "with 'rdma-transport run --horovod', without --data-parallel"
)


def start(folder: str) -> None:
    """Take part, if this is the first Python program of the rank; `folder` is on PYTHONPATH.

    Seeds are equal on all ranks. One that the program sets itself comes later, and so counts.
    """
    taken = take(folder)
    if taken is None:
        return
    options, seed = taken
    if options.explain and os.environ.get("RANK") == "0":
        changes.listen(lambda line: print(f"explain: {line}", file=sys.stderr, flush=True))
    random.seed(seed)
    changes.note("random, numpy.random and TensorFlow begin with equal seeds on all ranks")

    def seed_numpy(numpy: Any) -> None:
        numpy.random.seed(seed)

    def follow_keras(_: Any) -> None:
        from rdma_transport.data_parallel import guard, scaling
        from rdma_transport.keras import DataParallel, set_distribution

        set_distribution(DataParallel(sync_batch_norm=options.sync_batch_norm))
        guard.follow_keras()
        if options.scale_batch:
            scaling.follow_keras()

    hooks: dict[str, Hook] = {"numpy": seed_numpy, "tensorflow": _seed_tensorflow}
    if os.environ.get("WORLD_SIZE") != "1" or MEETING in os.environ:  # more may come
        hooks |= {"tensorflow": _follow_tensorflow, "keras": follow_keras, "tf_keras": follow_keras}
        hooks |= {"horovod": _HOROVOD, "rdma_transport.horovod": _HOROVOD}
    after_import(hooks)


def _seed_tensorflow(tensorflow: Any) -> None:
    tensorflow.random.set_seed(_TENSORFLOW_SEED)


def _follow_tensorflow(tensorflow: Any) -> None:
    from rdma_transport.data_parallel import guard, order

    _seed_tensorflow(tensorflow)
    guard.follow_tensorflow()
    order.follow_tensorflow()
