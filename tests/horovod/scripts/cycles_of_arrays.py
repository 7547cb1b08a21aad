"""NumPy's collectives in an elastic job, two of whose ranks are killed in turn, CYCLES times."""

import os
import signal
from pathlib import Path

import numpy as np

from rdma_transport.collectives import Communicator, others_wait
from rdma_transport.error_file import note_part
from rdma_transport.fabric import FabricError

CYCLES, SLOT, SIZE = int(os.environ["CYCLES"]), int(os.environ["RANK"]), 3
note_part()  # this is no program for Horovod


def resources() -> dict[str, int]:
    own = Path("/proc/self")
    found = {name: len(list((own / name).iterdir())) for name in ("fd", "task")}
    return found | {"maps": len((own / "maps").read_text().splitlines())}


def connected() -> Communicator:
    for _ in range(CYCLES):  # a rank may die while others connect
        try:
            return Communicator.connect()
        except FabricError:
            continue
    raise RuntimeError("the ranks do not connect")


def work(world: Communicator, cycle: int) -> bool:
    """Return whether others wait, after some collectives; end a rank in each cycle."""
    for _ in range(50):
        assert (world.all_reduce(np.ones(1 << 16, np.float32)) == world.size).all()
    wait = world.all_reduce(np.array([others_wait()], np.int32))[0] > 0
    if cycle < CYCLES and world.size == SIZE and cycle % 2 == SLOT - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return wait


cycle, found, whole = 0, [], False
while cycle < CYCLES or not whole:
    with connected() as world:
        if world.size == SIZE:
            found.append(resources())
        try:
            cycle = world.broadcast_object(cycle, 0)
            while (cycle < CYCLES or world.size < SIZE) and not work(world, cycle):
                pass
            whole = world.size == SIZE
        except FabricError as error:
            whole = False
            if "is gone" not in str(error):
                raise
            cycle += 1
if SLOT == 0:
    print(*found, sep="\n")
    assert len(found) >= CYCLES
    early, last = found[CYCLES // 4], found[-1]
    assert all(last[name] <= early[name] for name in ("fd", "task")), (early, last)
    assert last["maps"] <= early["maps"] + CYCLES // 4, (early, last)
print("done", flush=True)
