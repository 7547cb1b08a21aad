"""One-sided tensor transport for stock TensorFlow.

The transport itself needs no import: TensorFlow loads the plugin, and
``tf.distribute.Server(..., protocol="rdma")`` or ``"rpc_layer": "rdma"`` in ``TF_CONFIG`` uses it.
This package reports its settings and its counters.
"""

from rdma_transport.settings import Setting, settings
from rdma_transport.stats import stats

__all__ = ["Setting", "__version__", "settings", "stats"]
__version__ = "0.1.0"
