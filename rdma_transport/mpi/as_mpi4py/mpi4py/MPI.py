"""``mpi4py.MPI``, which is ``rdma_transport.mpi``."""

import sys

from rdma_transport import mpi

sys.modules[__name__] = mpi
