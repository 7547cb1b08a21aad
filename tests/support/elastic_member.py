"""A rank of an elastic job of NumPy: the same sums in each step, however many ranks there are.

usage: elastic_member.py STEPS RANKS    (as many steps, and more until there are as many ranks)
"""

import hashlib
import os
import sys
import time

import numpy as np

ROWS, SIZE = 12, 1000


def next_weights(weights: np.ndarray, total: np.ndarray) -> np.ndarray:
    return np.asarray(weights * 0.5 + total)


def rows_of(step: int) -> np.ndarray:
    """Return numbers whose sum is exact, in whatever order they are added."""
    return np.random.default_rng(step).integers(-1000, 1000, [ROWS, SIZE]).astype(np.float64)


def bits(weights: np.ndarray) -> str:
    return hashlib.sha256(weights.tobytes()).hexdigest()


def expected(steps: int) -> list[str]:
    """Return the bits after each step, of one process that nothing disturbs."""
    weights, found = np.zeros(SIZE), []
    for step in range(steps):
        weights = next_weights(weights, rows_of(step).sum(0))
        found.append(bits(weights))
    return found


def main(steps: int, ranks: int) -> None:
    from rdma_transport.collectives import Communicator, others_wait
    from rdma_transport.fabric import FabricError

    step, weights, failures = 0, np.zeros(SIZE), 0
    while failures < 20:
        try:
            with Communicator.connect() as world:
                step, weights = world.broadcast_object((step, weights), 0)
                at = os.environ["MASTER_ADDR"]
                print(f"begins {world.rank}/{world.size} after {step} at {at}", flush=True)
                changed = False
                while not changed:
                    if step >= steps and world.size == ranks:
                        print(f"done {step}", flush=True)
                        return
                    mine = rows_of(step)[world.rank :: world.size].sum(0)
                    weights = next_weights(weights, world.all_reduce(mine))
                    step += 1
                    print(f"{time.time():.3f} step {step} {bits(weights)}", flush=True)
                    time.sleep(0.05)
                    changed = world.broadcast(np.array([others_wait()], np.uint8))[0]
        except FabricError as error:
            print(error, file=sys.stderr, flush=True)
            failures += 1
    sys.exit("no other ranks to go on with")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
