"""Checks of this host: shared memory, what reaches others, and a clock that is cheap to read."""

import time
from collections.abc import Callable

from rdma_transport.doctor import fixes
from rdma_transport.doctor.context import Context
from rdma_transport.doctor.result import PASS, SKIP, WARN, Result
from rdma_transport.doctor.transfer import check_transfer

SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit")
_BATCHES = 50
_CALLS = 200  # of a batch: short, so that some batch is not interrupted
_TOO_MANY = 10  # empty calls; a reading that costs more is a system call
_SOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"


def check_shared_memory(context: Context) -> Result:
    """Unnamed shared memory can be created, sealed, sent to a peer, mapped, written and read."""
    if context.fabric not in ("auto", "shm"):
        return Result("shm_transfer", SKIP, f"not tried: RDMA_TRANSPORT_FABRIC={context.fabric}")
    fix = {
        "shell": "ulimit -n $(ulimit -Hn); ulimit -f unlimited; ulimit -v unlimited",
        "docker": "docker run --security-opt seccomp=unconfined ...    "
        "# if the profile forbids memfd_create",
        "kubernetes": "securityContext: {seccompProfile: {type: RuntimeDefault}} in the container",
    }
    return check_transfer("shm", fix)


def check_between_hosts(context: Context) -> Result:
    """Says what carries tensors to other hosts."""
    name, port = "between_hosts", context.port
    if context.fabric in ("auto", "verbs") and port is not None:
        return Result(name, PASS, f"tensors to other hosts use RDMA (verbs, {port['name']})")
    if context.fabric in ("auto", "libfabric") and context.providers:
        offer = context.providers[0]
        kind = f"libfabric, {offer['provider']} on {offer['interface']}"
        if offer["provider"] == "tcp":
            return Result(name, PASS, f"tensors to other hosts use TCP, not RDMA ({kind})")
        return Result(name, PASS, f"tensors to other hosts use {kind}")
    return Result(name, PASS, "tensors to other hosts use gRPC: no fabric reaches any")


def cost(call: Callable[[], object]) -> float:
    """Return the time of one call from Python, in nanoseconds.

    It is that of the fastest batch of calls: on a busy host others are interrupted.
    """
    took = []
    for _ in range(_BATCHES):
        began = time.perf_counter_ns()
        for _ in range(_CALLS):
            call()
        took.append((time.perf_counter_ns() - began) / _CALLS)
    return min(took)


def check_clock(context: Context) -> Result:
    """Reading the clock needs no system call; the polling thread reads it all the time."""
    source = context.system.text(_SOURCE) or "unknown clock source"
    reading, nothing = cost(time.monotonic_ns), cost(tuple)
    found = f"{source}, {reading:.0f} ns per read"
    if source in SLOW_CLOCKS or reading > _TOO_MANY * nothing:
        found += f" (an empty call takes {nothing:.0f} ns)"
        why = "the polling thread reads the clock in each turn; a slow clock delays small tensors"
        return Result("clock", WARN, found, why, fixes.CLOCK)
    return Result("clock", PASS, f"{found}; clocks of two hosts need not agree")


CHECKS = (check_shared_memory, check_between_hosts, check_clock)
