"""What processors this host has, and which of them a rank is kept to."""

import os
from pathlib import Path


def model() -> str:
    """Return the model of the processor, as Linux names it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "CPU part")):
            return line.partition(":")[2].strip()
    return "unknown processor"


def shares(ranks: int, bind: bool) -> list[list[int]]:
    """Return the processors of each rank: equal shares of neighbors, or all for each."""
    if not ranks:
        return []
    allowed = sorted(os.sched_getaffinity(0), key=_position)
    share = len(allowed) // ranks
    if not bind or share == 0:
        return [allowed] * ranks
    return [allowed[rank * share : (rank + 1) * share] for rank in range(ranks)]


def _position(processor: int) -> tuple[int, int, int]:
    """Return socket and core of a processor, so that threads of a core are neighbors."""
    topology = Path(f"/sys/devices/system/cpu/cpu{processor}/topology")
    try:
        socket_number = int((topology / "physical_package_id").read_text())
        return socket_number, int((topology / "core_id").read_text()), processor
    except (OSError, ValueError):
        return 0, processor, processor
