"""What peers on this host need of it: shared memory, and a clock that costs little."""

import time
from collections.abc import Callable

from rdma_transport.doctor import mending
from rdma_transport.doctor.case import Case
from rdma_transport.doctor.result import PASS, SKIP, WARN, Result
from rdma_transport.doctor.transfer import check_transfer

SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit")
_CALLS = 2000
_TOO_MANY = 10  # calls that do nothing: then a reading asks the kernel
_SOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"


def check_shared_memory(case: Case) -> Result:
    """Unnamed shared memory can be made, sealed, sent to a peer, mapped, written and read."""
    if case.fabric not in ("auto", "shm"):
        return Result("shm_transfer", SKIP, f"not tried: RDMA_TRANSPORT_FABRIC={case.fabric}")
    mend = {
        "shell": "ulimit -n 65536; ulimit -f unlimited; ulimit -v unlimited",
        "docker": "docker run --security-opt seccomp=unconfined ...    "
        "# if the profile forbids memfd_create",
        "kubernetes": "securityContext: {seccompProfile: {type: RuntimeDefault}} in the container",
    }
    return check_transfer("shm", mend)


def cost(call: Callable[[], object]) -> float:
    """Return the median of the nanoseconds that one call takes, from Python."""
    took = []
    for _ in range(5):
        began = time.perf_counter_ns()
        for _ in range(_CALLS):
            call()
        took.append((time.perf_counter_ns() - began) / _CALLS)
    return sorted(took)[2]


def check_clock(case: Case) -> Result:
    """The clock is read without the kernel's help; the polling thread reads it all the time."""
    source = case.surroundings.text(_SOURCE) or "of an unknown source"
    reading, nothing = cost(time.monotonic_ns), cost(tuple)
    found = f"{source}, {reading:.0f} ns a reading"
    if source in SLOW_CLOCKS or reading > _TOO_MANY * nothing:
        found += f" (a call that does nothing: {nothing:.0f} ns)"
        why = "the polling thread reads it in every turn; a slow clock delays every small tensor"
        return Result("clock", WARN, found, why, mending.CLOCK)
    return Result("clock", PASS, f"{found}; nothing compares the clocks of two hosts")


CHECKS = (check_shared_memory, check_clock)
