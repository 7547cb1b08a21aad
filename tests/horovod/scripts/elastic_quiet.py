"""Ranks that print, before and after rank 0 is killed."""

import os
import signal

from rdma_transport.collectives import Communicator
from rdma_transport.error_file import note_part
from rdma_transport.fabric import FabricError

note_part()  # this is no program for Horovod
world = Communicator.connect()
print("before", world.rank, flush=True)
if world.rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    world.barrier()
except FabricError:
    world.close()
    world = Communicator.connect()
print("after", world.rank, flush=True)
