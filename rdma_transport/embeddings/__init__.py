"""Embeddings that are larger than a host: their rows are divided among the ranks of a job.

Lookups read rows from the memory of their owners, where it is mapped or by one-sided RDMA reads.
Start the processes with ``rdma-transport run -n 2 -- python script.py``::

    from rdma_transport.embeddings import Table

    table = Table(rows=100_000_000, dim=64, optimizer="adagrad")
    vectors = table.lookup(ids)  # of this rank's batch
    ...
    table.apply_gradients(ids, gradients)  # all ranks together

Lookups of tensors work in ``tf.function``, with gradients; ``rdma_transport.embeddings.keras`` has
a layer.
"""

from rdma_transport.embeddings.optimizers import FTRL, SGD, Adagrad, Adam
from rdma_transport.embeddings.table import Table

__all__ = ["FTRL", "SGD", "Adagrad", "Adam", "Table"]
