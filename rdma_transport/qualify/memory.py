"""A claim about memory: as much as tasks use can be registered and reached."""

import json
import os
import time

from rdma_transport import _native
from rdma_transport.doctor import fixes
from rdma_transport.doctor.context import Context as DoctorContext
from rdma_transport.doctor.context import set_aside
from rdma_transport.doctor.result import FAIL, PASS, Result
from rdma_transport.doctor.system import System
from rdma_transport.doctor.transfer import NBYTES, pattern
from rdma_transport.fabric import FabricError, Region
from rdma_transport.qualify.context import Context
from rdma_transport.qualify.contract import MIB, size
from rdma_transport.qualify.hosts import StepError
from rdma_transport.qualify.links import linked
from rdma_transport.settings import read

_SMALLEST = 64 * MIB
_SECONDS = 600.0
_PATTERN = pattern()


def memory(context: Context) -> Result:
    """Registers regions up to the arena's size; a peer writes to both ends of each."""
    hosts = context.hosts
    total = context.memory or _arena()
    with linked(hosts) as (device, out, into):
        regions: list[Region] = []

        def registered() -> tuple[list[str], float, str]:
            """Each region is twice as large as the one before, as those of an arena that grows."""
            began = time.monotonic()
            tokens: list[str] = []
            problem = ""
            left = total
            while left >= MIB:
                nbytes = min(left, _SMALLEST << len(regions))
                try:
                    regions.append(device.allocate(nbytes, writable_by_peers=True))
                    tokens.append(into.share(regions[-1]).hex())
                except FabricError as error:
                    problem = f"after {size(total - left)} of {size(total)}: {error}"
                    break
                left -= nbytes
            return tokens, time.monotonic() - began, problem.split("\n")[0]

        answers = hosts.together(registered, _SECONDS)

        def written() -> bool:
            source = device.allocate(NBYTES)
            memoryview(source).cast("B")[:NBYTES] = _PATTERN
            for token in answers[hosts.other(1)][0]:
                remote = out.remote(bytes.fromhex(token))
                for offset in {0, remote.nbytes - NBYTES}:
                    out.write(remote, offset, source=source, nbytes=NBYTES)
            return True

        hosts.together(written, _SECONDS)

        def checked() -> int:
            """Returns the number of regions that do not have the peer's bytes at both ends."""
            views = [memoryview(region).cast("B") for region in regions]
            return sum(
                view[:NBYTES] != _PATTERN or view[len(view) - NBYTES :] != _PATTERN
                for view in views
            )

        wrong = hosts.together(checked, _SECONDS)
        regions.clear()
    problems = [
        f"{name}: {answer[2]}" for name, answer in zip(hosts.names, answers, strict=True)
        if answer[2]
    ]  # fmt: skip
    if problems:
        why = "tasks register their arena while they run, and would fall back to gRPC"
        fix = fixes.from_help(json.loads(_native.survey_json())["memlock"]["help"])
        return Result("memory", FAIL, "\n".join(problems), why, fix)
    if any(wrong):
        raise StepError(f"{sum(wrong)} registered regions do not have what the peer wrote")
    seconds = max(answer[1] for answer in answers)
    context.figures["registered"] = {"bytes": total, "seconds": seconds}
    return Result(
        "memory",
        PASS,
        f"{size(total)} registered in {seconds:.2f} s on each host, and written at both ends",
    )


def _arena() -> int:
    """Bytes of the arena of a task that has this host alone, as far as they are free now."""
    given = read()
    saved = dict(os.environ)
    try:
        limit = DoctorContext(given=given, environment=set_aside(given)).arena_limit
    finally:
        os.environ.update(saved)
    free = System().meminfo("MemAvailable") // 5 * 4
    return max(min(limit, free) // MIB * MIB, MIB)
