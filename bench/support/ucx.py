"""UCX's one-sided operations through shared memory, measured by its own `ucx_perftest`.

Two processes of this host, each on a processor of its own, which take turns with what they are
compared with.
"""

import csv
import os
import shutil
import subprocess
import threading
from dataclasses import dataclass
from typing import IO

from . import processors
from .ports import free_port

PROGRAM = "ucx_perftest"
TRANSPORTS = "posix,cma,self"  # of one host
# The options of each test; the number of reads in flight is that of the fabric's tests.
TESTS = {
    "write_bw": ["-t", "ucp_put_bw"],
    "read_bw": ["-t", "ucp_get", "-O", "128"],
    "write_lat": ["-t", "ucp_put_lat"],
    "read_lat": ["-t", "ucp_get", "-O", "1"],
}
SECONDS = 60.0  # of one test, at most


@dataclass(frozen=True)
class Figures:
    """What one test found. `p50`: us, half of a round trip of a write, or a whole read."""

    p50: float
    gbps: float


class UcxError(RuntimeError):
    """`ucx_perftest` failed, or printed something else than figures."""


def missing() -> str:
    """Return why UCX cannot be measured; empty if it can."""
    if shutil.which(PROGRAM) is None:
        return f"there is no {PROGRAM}. Install it: apt-get install ucx-utils"
    return ""


def version() -> str:
    """Return UCX's version, or an empty text."""
    try:
        ran = subprocess.run(["ucx_info", "-v"], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    words = ran.stdout.split()  # "# Library version: 1.13.1", or "# UCT version=1.13.1 …"
    return next((w.rpartition("=")[2] for w in words if w[-1:].isdigit() and "." in w), "")


def measure(test: str, nbytes: int, iterations: int) -> Figures:
    """Run one test of TESTS; raise UcxError."""
    port = str(free_port())
    count = ["-n", str(iterations), "-w", str(iterations // 4 + 1)]
    words = [PROGRAM, *TESTS[test], "-s", str(nbytes), *count, "-p", port, "-f", "-v"]
    environment = os.environ | {"UCX_TLS": TRANSPORTS, "UCX_LOG_LEVEL": "error"}
    each = processors.of_each()
    here, there = map(processors.words_for, each) if each else ([], [])
    serving = subprocess.Popen(
        [*there, "stdbuf", "-oL", *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    limit = threading.Timer(SECONDS, serving.kill)
    limit.start()
    try:
        _await_server(serving.stdout)
        ran = subprocess.run(
            [*here, words[0], "127.0.0.1", *words[1:]],
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UcxError(f"{test} of {nbytes} bytes took over {SECONDS:.0f} s") from None
    finally:
        limit.cancel()
        serving.kill()
        serving.communicate()
    return _figures(ran.stdout + ran.stderr, iterations)


def _await_server(output: IO[str] | None) -> None:
    assert output is not None
    heard = ""
    for line in output:
        heard += line
        if "Waiting for connection" in line:
            return
    raise UcxError(f"{PROGRAM} does not start: {heard.strip() or 'it printed nothing'}")


def _figures(printed: str, iterations: int) -> Figures:
    """Parse the line of the CSV after its header."""
    for row in csv.DictReader(line for line in printed.splitlines() if "," in line):
        try:
            p50 = next(float(value) for name, value in row.items() if "percentile" in str(name))
            # MB are 2^20 bytes there.
            figures = Figures(p50, float(row["overall_bw"]) * 2**20 / 1e9)
        except (KeyError, StopIteration, TypeError, ValueError):
            continue
        if str(row.get("iterations")).strip() == str(iterations):
            return figures
    raise UcxError(f"{PROGRAM} printed no figures: {printed.strip() or 'nothing'}")
