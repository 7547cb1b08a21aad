"""Memory, and the limits on it: what the arena may take, and what a plan needs."""

import math
import resource

from graph_analyzer.units import format_bytes
from rdma_transport.doctor import mending
from rdma_transport.doctor.case import CHANNELS_PER_PEER, Case
from rdma_transport.doctor.result import FAIL, PASS, WARN, Result, setting
from rdma_transport.doctor.surroundings import soft_limit

SLAB = 256 << 20
"""Of the arena, at most; a larger tensor gets one of its own size."""
SMALLEST_WINDOW = 4 << 30
LARGEST_WINDOW = 256 << 30
"""Address space for peers' memory; less is tried where a limit forbids it."""
DESCRIPTORS_PER_PEER = 2 * CHANNELS_PER_PEER + 2  # and gRPC's connections, one each way
OTHER_DESCRIPTORS = 256  # TensorFlow's, Python's, the device's
THREADS = 256  # TensorFlow's pools on a host of many cores; the plugin's own are four
_OVERCOMMIT_NEVER = 2


def _gigabytes(count: int) -> str:
    return f"{max(1, math.ceil(count / 2**30))}G"


def check_memory(case: Case) -> Result:
    """The memory of this host or container is enough, and the arena knows its limit."""
    total = case.surroundings.meminfo("MemTotal")
    available = case.surroundings.meminfo("MemAvailable")
    limit = case.surroundings.memory_limit()
    needed = 0
    bound = min(total, limit[0]) if limit else total
    found = f"{format_bytes(total)}, {format_bytes(available)} available"
    if limit:
        found += f", at most {format_bytes(limit[0])} by {limit[1]}"
    if case.need:
        needed = case.need.tensors
        found += f"; the plan needs {format_bytes(needed)} for {case.need.task}"
    if needed > min(bound, available):
        why = "what crosses between tasks does not even fit, and the model comes on top"
        return Result("memory", FAIL, found, why, mending.memory(_gigabytes(2 * needed)))
    if bound < case.arena_limit:
        why = (
            f"the arena may grow to {format_bytes(case.arena_limit)} (ARENA_SIZE), above this "
            "limit; the kernel would kill the task at it"
        )
        return Result(
            "memory", WARN, found, why, setting("ARENA_SIZE", f"{bound * 3 // 4 >> 20}MiB")
        )
    if case.surroundings.number("/proc/sys/vm/overcommit_memory") == _OVERCOMMIT_NEVER:
        left = case.surroundings.meminfo("CommitLimit") - case.surroundings.meminfo("Committed_AS")
        if left < max(needed, SLAB):
            why = "vm.overcommit_memory is 2: the kernel promises no more memory than it has"
            mend = {"shell": "sysctl vm.overcommit_memory=0    # or a higher vm.overcommit_ratio"}
            return Result("memory", WARN, f"{format_bytes(left)} can be promised", why, mend)
    return Result("memory", PASS, found)


def check_arena(case: Case) -> Result:
    """RDMA_TRANSPORT_ARENA_SIZE is enough for the plan."""
    limit = case.arena_limit
    given = case.environment.value("ARENA_SIZE")
    found = f"up to {format_bytes(limit)} for tensors and slots (ARENA_SIZE is {given}"
    found += "; tasks on one host share it)" if given == "auto" else ")"
    if case.need is None:
        return Result("arena", PASS, found)
    needed = case.need.tensors
    found += f"; the plan needs {format_bytes(needed)} for {case.need.task}"
    if needed > limit:
        why = "tensors that find no room are copied, or go by gRPC"
        return Result("arena", FAIL, found, why, setting("ARENA_SIZE", f"{2 * needed >> 20}MiB"))
    return Result("arena", PASS, found)


def check_file_size(case: Case) -> Result:
    """The limit on file sizes allows slabs of shared memory, which are unnamed files."""
    limit = soft_limit(resource.RLIMIT_FSIZE)
    if limit is None:
        return Result("file_size", PASS, "no limit")
    largest = max(SLAB, case.need.largest if case.need else 0)
    found = (
        f"{format_bytes(limit)} (RLIMIT_FSIZE); slabs of shared memory have {format_bytes(largest)}"
    )
    if limit >= largest:
        return Result("file_size", PASS, found)
    why = "the arena cannot grow by a larger slab; larger tensors go by gRPC"
    status = FAIL if case.need and limit < case.need.largest else WARN
    return Result("file_size", status, found, why, mending.FILE_SIZE)


def check_address_space(case: Case) -> Result:
    """The limit on address space allows the arenas and the window on peers' memory."""
    limit = soft_limit(resource.RLIMIT_AS)
    if limit is None:
        return Result("address_space", PASS, "no limit")
    arenas = 2 * case.arena_limit
    found = f"{format_bytes(limit)} (RLIMIT_AS); {format_bytes(arenas)} are reserved for arenas"
    if limit < arenas + SMALLEST_WINDOW:
        why = "the arenas, or a window on peers' memory, cannot be reserved: tensors are copied"
        return Result("address_space", FAIL, found, why, mending.ADDRESS_SPACE)
    if limit < arenas + LARGEST_WINDOW:
        why = f"of {format_bytes(LARGEST_WINDOW)} for peers' memory only a part can be reserved"
        return Result("address_space", WARN, found, why, mending.ADDRESS_SPACE)
    return Result("address_space", PASS, found)


def check_open_files(case: Case) -> Result:
    """There are descriptors enough for peers and slabs."""
    limit = soft_limit(resource.RLIMIT_NOFILE)
    if limit is None:
        return Result("open_files", PASS, "no limit")
    if case.need is None:
        peers = max(0, limit - OTHER_DESCRIPTORS) // DESCRIPTORS_PER_PEER
        found = f"{limit}: enough for about {peers} peers"
        if peers >= 64:
            return Result("open_files", PASS, found)
        why = "each peer takes descriptors of shared memory, and gRPC's connections"
        return Result("open_files", WARN, found, why, mending.OPEN_FILES)
    slabs = math.ceil(case.need.tensors / SLAB)
    needed = OTHER_DESCRIPTORS + DESCRIPTORS_PER_PEER * case.need.peers + slabs
    found = f"{limit}; {case.need.task} needs about {needed} for {case.need.peers} peers"
    if limit >= needed:
        return Result("open_files", PASS, found)
    why = "a descriptor that finds no room ends a channel, and tensors go by gRPC"
    return Result("open_files", FAIL, found, why, mending.OPEN_FILES)


def check_threads(case: Case) -> Result:
    """TensorFlow and the plugin can start their threads."""
    group = case.surroundings.task_limit()
    user = soft_limit(resource.RLIMIT_NPROC)
    found = [f"at most {group[0]} by {group[1]}"] if group else []
    found += [f"at most {user} of this user (RLIMIT_NPROC)"] if user is not None else []
    limits = [limit for limit in (group[0] if group else None, user) if limit is not None]
    if limits and min(limits) < THREADS:
        why = (
            "TensorFlow starts a thread per core in several pools; one that fails ends the process"
        )
        return Result("threads", WARN, ", ".join(found), why, mending.THREADS)
    return Result("threads", PASS, ", ".join(found) or "no limit")


CHECKS = (
    *(check_memory, check_arena, check_file_size, check_address_space),
    *(check_open_files, check_threads),
)
