"""Sums an array over the ranks of a NumPy job, without TensorFlow.

rdma-transport run -n 2 -- python examples/all_reduce.py
"""

import numpy as np

from rdma_transport.collectives import Communicator

with Communicator.connect() as group:
    array = group.empty(4, np.float32)  # others read it in place
    array[:] = group.rank + 1
    print(f"rank {group.rank} of {group.size}: {group.all_reduce(array)}")
