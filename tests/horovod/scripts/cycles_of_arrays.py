"""NumPy's collectives in an elastic job, two of whose ranks are killed in turn, CYCLES times."""

import os
import signal
from pathlib import Path

import numpy as np

from rdma_transport.collectives import Communicator
from rdma_transport.error_file import note_part
from rdma_transport.fabric import FabricError

CYCLES, SLOT, SIZE = int(os.environ["CYCLES"]), int(os.environ["RANK"]), 3
note_part()  # this is no program for Horovod


def resources() -> dict[str, int]:
    own = Path("/proc/self")
    found = {name: len(list((own / name).iterdir())) for name in ("fd", "task")}
    return found | {"maps": len((own / "maps").read_text().splitlines())}


def work(world: Communicator, cycle: int) -> None:
    """Do some collectives in registered memory; end a rank in each cycle."""
    for _ in range(50):
        array[:] = 1
        assert (world.all_reduce(array, out=array) == world.size).all()
    if cycle < CYCLES and world.size == SIZE and cycle % 2 == SLOT - 1:
        os.kill(os.getpid(), signal.SIGKILL)


cycle, found = 0, []
world = Communicator.connect()
array = world.empty(1 << 16, np.float32)  # of all cycles
while True:
    try:
        cycle = world.broadcast_object(cycle, 0)
        if world.size == SIZE:
            found.append(resources())
            if cycle >= CYCLES:
                break
        before = world
        while world is before:
            work(world, cycle)
            world = world.grow()
    except FabricError as error:
        if "is gone" not in str(error):
            raise
        cycle += 1
        world = world.shrink()
world.close()
if SLOT == 0:
    print(*found, sep="\n")
    assert len(found) >= CYCLES
    early, last = found[CYCLES // 4], found[-1]
    assert all(last[name] <= early[name] for name in ("fd", "task")), (early, last)
    assert last["maps"] <= early["maps"] + CYCLES // 4, (early, last)
print("done", flush=True)
