"""Checks of memory and limits: what the arena may use, and what a plan needs."""

import math
import resource

from rdma_transport.doctor import fixes
from rdma_transport.doctor.context import Context
from rdma_transport.doctor.result import FAIL, PASS, WARN, Result, setting
from rdma_transport.doctor.system import soft_limit
from rdma_transport.units import format_bytes

SLAB = 256 << 20
"""The largest slab of the arena; a larger tensor gets a slab of its own size."""
SMALLEST_WINDOW = 4 << 30
LARGEST_WINDOW = 256 << 30
"""Address space for peers' memory; a smaller window is tried if a limit forbids it."""
DESCRIPTORS_PER_PEER = 4  # of the channel's rings, and a gRPC connection each way
OTHER_DESCRIPTORS = 256  # of TensorFlow, Python and the device
THREADS = 256  # TensorFlow's pools on a host with many cores; the plugin has four
_OVERCOMMIT_NEVER = 2


def _gigabytes(count: int) -> str:
    return f"{max(1, math.ceil(count / 2**30))}G"


def check_memory(context: Context) -> Result:
    """This host or container has enough memory, and the arena respects its limit."""
    total = context.system.meminfo("MemTotal")
    available = context.system.meminfo("MemAvailable")
    limit = context.system.memory_limit()
    needed = 0
    bound = min(total, limit[0]) if limit else total
    found = f"{format_bytes(total)}, {format_bytes(available)} available"
    if limit:
        found += f", limited to {format_bytes(limit[0])} by {limit[1]}"
    if context.need:
        needed = context.need.tensors
        found += f"; the plan needs {format_bytes(needed)} for {context.need.task}"
    if needed > min(bound, available):
        why = "the buffers of the transport do not fit, and the model needs memory in addition"
        return Result("memory", FAIL, found, why, fixes.memory(_gigabytes(2 * needed)))
    if bound < context.arena_limit:
        why = (
            f"the arena may grow to {format_bytes(context.arena_limit)} (ARENA_SIZE), which is "
            "above this limit; the kernel kills a task that exceeds the limit"
        )
        return Result(
            "memory", WARN, found, why, setting("ARENA_SIZE", f"{bound * 3 // 4 >> 20}MiB")
        )
    if context.system.number("/proc/sys/vm/overcommit_memory") == _OVERCOMMIT_NEVER:
        left = context.system.meminfo("CommitLimit") - context.system.meminfo("Committed_AS")
        if left < max(needed, SLAB):
            why = "vm.overcommit_memory is 2: the kernel does not overcommit memory"
            fix = {"shell": "sysctl vm.overcommit_memory=0    # or raise vm.overcommit_ratio"}
            return Result("memory", WARN, f"{format_bytes(left)} can be committed", why, fix)
    return Result("memory", PASS, found)


def check_arena(context: Context) -> Result:
    """RDMA_TRANSPORT_ARENA_SIZE is large enough for the plan."""
    limit = context.arena_limit
    given = context.environment.value("ARENA_SIZE")
    found = f"up to {format_bytes(limit)} for tensors and slots (ARENA_SIZE is {given}"
    found += "; tasks on one host share it)" if given == "auto" else ")"
    if context.need is None:
        return Result("arena", PASS, found)
    needed = context.need.tensors
    found += f"; the plan needs {format_bytes(needed)} for {context.need.task}"
    if needed > limit:
        why = "tensors that do not fit in the arena are copied, or fall back to gRPC"
        return Result("arena", FAIL, found, why, setting("ARENA_SIZE", f"{2 * needed >> 20}MiB"))
    return Result("arena", PASS, found)


def check_file_size(context: Context) -> Result:
    """The file size limit allows slabs of shared memory, which are unnamed files."""
    limit = soft_limit(resource.RLIMIT_FSIZE)
    if limit is None:
        return Result("file_size", PASS, "no limit")
    largest = max(SLAB, context.need.largest if context.need else 0)
    found = (
        f"{format_bytes(limit)} (RLIMIT_FSIZE); slabs of shared memory need {format_bytes(largest)}"
    )
    if limit >= largest:
        return Result("file_size", PASS, found)
    why = "the arena cannot allocate a slab above the limit; larger tensors fall back to gRPC"
    status = FAIL if context.need and limit < context.need.largest else WARN
    return Result("file_size", status, found, why, fixes.FILE_SIZE)


def check_address_space(context: Context) -> Result:
    """The address space limit allows the arenas and the window for peers' memory."""
    limit = soft_limit(resource.RLIMIT_AS)
    if limit is None:
        return Result("address_space", PASS, "no limit")
    arenas = 2 * context.arena_limit
    found = f"{format_bytes(limit)} (RLIMIT_AS); {format_bytes(arenas)} are reserved for arenas"
    if limit < arenas + SMALLEST_WINDOW:
        why = "the arenas or the window for peers' memory cannot be reserved: tensors are copied"
        return Result("address_space", FAIL, found, why, fixes.ADDRESS_SPACE)
    if limit < arenas + LARGEST_WINDOW:
        why = f"only part of {format_bytes(LARGEST_WINDOW)} for peers' memory can be reserved"
        return Result("address_space", WARN, found, why, fixes.ADDRESS_SPACE)
    return Result("address_space", PASS, found)


def check_open_files(context: Context) -> Result:
    """The limit on file descriptors is enough for peers and slabs."""
    limit = soft_limit(resource.RLIMIT_NOFILE)
    if limit is None:
        return Result("open_files", PASS, "no limit")
    if context.need is None:
        peers = max(0, limit - OTHER_DESCRIPTORS) // DESCRIPTORS_PER_PEER
        found = f"{limit}: enough for about {peers} peers"
        if peers >= 64:
            return Result("open_files", PASS, found)
        why = "each peer needs descriptors for shared memory and for gRPC connections"
        return Result("open_files", WARN, found, why, fixes.OPEN_FILES)
    slabs = math.ceil(context.need.tensors / SLAB)
    needed = OTHER_DESCRIPTORS + DESCRIPTORS_PER_PEER * context.need.peers + slabs
    found = f"{limit}; {context.need.task} needs about {needed} for {context.need.peers} peers"
    if limit >= needed:
        return Result("open_files", PASS, found)
    why = "without a free descriptor a channel closes, and its tensors fall back to gRPC"
    return Result("open_files", FAIL, found, why, fixes.OPEN_FILES)


def check_threads(context: Context) -> Result:
    """TensorFlow and the plugin can start their threads."""
    group = context.system.task_limit()
    user = soft_limit(resource.RLIMIT_NPROC)
    found = [f"limited to {group[0]} by {group[1]}"] if group else []
    found += [f"limited to {user} for this user (RLIMIT_NPROC)"] if user is not None else []
    limits = [limit for limit in (group[0] if group else None, user) if limit is not None]
    if limits and min(limits) < THREADS:
        why = (
            "TensorFlow starts a thread per core in several pools; "
            "the process dies if a thread cannot start"
        )
        return Result("threads", WARN, ", ".join(found), why, fixes.THREADS)
    return Result("threads", PASS, ", ".join(found) or "no limit")


CHECKS = (
    *(check_memory, check_arena, check_file_size, check_address_space),
    *(check_open_files, check_threads),
)
