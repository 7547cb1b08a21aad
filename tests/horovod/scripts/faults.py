"""CYCLES of random faults in an elastic job of NumPy; one process on whole batches is the oracle.

Sums are of integers, so results do not depend on the ranks. Each cycle ends when all ranks are
there again and have equal bits.
"""

import hashlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from threading import Timer

import numpy as np

from rdma_transport.collectives import Communicator
from rdma_transport.error_file import note_part
from rdma_transport.fabric import FabricError
from rdma_transport.settings import read
from rdma_transport.units import parse_seconds

CYCLES, SIZE, FOLDER = int(os.environ["CYCLES"]), 4, Path(os.environ["FOLDER"])
TIMEOUT = parse_seconds(read().value("PEER_TIMEOUT"))
KINDS = ("killed", "stops", "hangs", "raises", "slow", "two", "recovering")
STEPS, WIDTH, BATCH = 12, 1 << 16, 60
note_part()  # this is no program for Horovod


class Fault:
    """What happens in a cycle: all ranks know, since it follows from the number of the cycle."""

    def __init__(self, cycle: int) -> None:
        chance = random.Random(cycle)
        self.kind = chance.choice(KINDS) if chance.random() > 0.05 else "root"
        self.at = chance.randrange(1, STEPS)
        self.victims = chance.sample(range(1, SIZE), 2 if self.kind in ("two", "recovering") else 1)
        if self.kind == "root":  # elsewhere it is not hit, and so shows what grows
            self.victims = [0]
        self.delay = chance.random() * 0.1

    def strike(self, rank: int, cycle: int) -> None:
        """Let this rank fail, if it is one that does."""
        if rank not in self.victims or (self.kind == "recovering" and rank != self.victims[0]):
            return
        (FOLDER / f"fault_{cycle}").write_text(str(time.time()))
        if self.kind == "raises":
            raise ValueError("the cause")
        if self.kind == "slow":
            time.sleep(1.5 * TIMEOUT)
        elif self.kind == "stops":
            resume = f"sleep {0.4 * TIMEOUT}; kill -CONT {os.getpid()}"
            with subprocess.Popen(["sh", "-c", resume], start_new_session=True):
                os.kill(os.getpid(), signal.SIGSTOP)
        else:
            os.kill(os.getpid(), signal.SIGSTOP if self.kind == "hangs" else signal.SIGKILL)

    def strike_again(self, rank: int) -> None:
        """Let a second rank fail while the others connect."""
        if self.kind == "recovering" and rank == self.victims[1]:
            Timer(self.delay, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()


def part(step: int, weights: np.ndarray, first: int, last: int) -> np.ndarray:
    """Return the sum over some examples of a batch."""
    return sum((weights * (step + each) % 1009 for each in range(first, last)), np.int64(0))


def updated(weights: np.ndarray, total: np.ndarray) -> np.ndarray:
    return (weights + total) % 1000003


def resources(process: object) -> dict[str, int]:
    own = Path(f"/proc/{process}")
    found = {name: len(list((own / name).iterdir())) for name in ("fd", "task")}
    found["maps"] = len((own / "maps").read_text().splitlines())
    return found | {"MiB": int((own / "statm").read_text().split()[1]) >> 8}


class Training:
    """The state of a training, and the communicator."""

    def __init__(self) -> None:
        self.world = Communicator.connect()
        self.sums = self.world.empty(WIDTH, np.int64)
        self.weights = np.arange(WIDTH, dtype=np.int64)
        self.step = self.cycle = self.done = 0  # steps in all, and in this cycle
        self.struck = False

    def share(self) -> None:
        """Take the state of a rank that has done most steps."""
        steps = self.world.all_gather_object((self.cycle, self.done, self.step))
        root = steps.index(max(steps))
        self.cycle, self.done, self.step = steps[root]
        self.struck = any(self.world.all_gather_object(self.struck))
        self.world.broadcast(self.weights, root)

    def train(self) -> None:
        """Do a step."""
        rank, size = self.world.rank, self.world.size
        bounds = (rank * BATCH // size, (rank + 1) * BATCH // size)
        self.sums[:] = part(self.step, self.weights, *bounds)
        self.world.all_reduce(self.sums, out=self.sums)
        self.weights = updated(self.weights, self.sums)
        self.step, self.done = self.step + 1, self.done + 1

    def end_cycle(self) -> None:
        """Compare all ranks."""
        digests = self.world.all_gather_object(hashlib.sha256(self.weights.tobytes()).hexdigest())
        assert len(set(digests)) == 1, digests
        if self.world.rank == 0:
            seconds = last_step.get(self.cycle, time.time()) - began(self.cycle)
            now = {"own": resources("self"), "launcher": resources(os.getppid())}
            print(f"cycle {self.cycle} {Fault(self.cycle).kind} {seconds:.3f} {now}", flush=True)
        self.cycle, self.done, self.struck = self.cycle + 1, 0, False


def began(cycle: int) -> float:
    return float((FOLDER / f"fault_{cycle}").read_text())


training, last_step = Training(), {}
new = True
while training.cycle < CYCLES:
    fault = Fault(training.cycle)
    try:
        if new:
            training.share()
            new = False
        elif training.done == fault.at and not training.struck and training.world.size == SIZE:
            training.struck = True
            fault.strike(training.world.rank, training.cycle)
            training.train()
            last_step.setdefault(training.cycle, time.time())
        elif training.done >= STEPS and training.struck and training.world.size == SIZE:
            training.end_cycle()
        else:
            training.train()
            if training.struck:
                last_step.setdefault(training.cycle, time.time())
        before, training.world = training.world, training.world.grow()
        new = training.world is not before
    except FabricError as error:
        if "is gone" not in str(error):
            raise
        fault.strike_again(training.world.rank)
        training.struck = True
        training.world = training.world.shrink()
        new = True
if training.world.rank == 0:
    expected = np.arange(WIDTH, dtype=np.int64)
    for step in range(training.step):
        expected = updated(expected, part(step, expected, 0, BATCH))
    np.testing.assert_array_equal(training.weights, expected)
    print(f"{training.step} steps are those of one process", flush=True)
training.world.close()
print("done", flush=True)
