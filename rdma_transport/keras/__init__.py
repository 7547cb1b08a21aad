"""Data-parallel training of models of Keras: the calls of models run on all ranks.

Each rank runs the whole script with the same seeds, and so has the same batches. After ::

    from rdma_transport.keras import DataParallel, set_distribution

    set_distribution(DataParallel())

a call of a model, wherever it is (in ``fit()``, ``evaluate()`` or ``predict()``, in a loop with
``tf.GradientTape``), runs on this rank's slice of the batch, and returns the outputs for the whole
batch. Gradients through it are those of the whole batch, on all ranks.
"""

from rdma_transport.keras.current import distribution
from rdma_transport.keras.data_parallel import DataParallel, set_distribution

__all__ = ["DataParallel", "distribution", "set_distribution"]
