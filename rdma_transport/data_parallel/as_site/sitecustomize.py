"""Python imports this when it starts, since the launcher has put its folder on PYTHONPATH.

Makes the program take part, if it is the first one of its rank, and then does what the user's own
module of this name does.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

_FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _FOLDER]
try:
    from rdma_transport.data_parallel import activation
except ImportError as error:
    sys.exit(
        f"error: {sys.executable} cannot take part in data-parallel training: {error}. Install "
        "rdma_transport for this Python, too"
    )
activation.start(_FOLDER)
if (_spec := PathFinder.find_spec(__name__)) and _spec.loader:
    sys.modules[__name__] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[__name__])
