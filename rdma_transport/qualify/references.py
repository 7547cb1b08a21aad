"""What other programs measure between the same cards: perftest, or fi_pingpong."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from typing import Any

from rdma_transport import _native
from rdma_transport.doctor.result import PASS, SKIP, WARN, Result
from rdma_transport.fabric import FabricError
from rdma_transport.qualify.context import Context
from rdma_transport.qualify.hosts import StepError

_SECONDS = 60.0
_PORT = 18515
_ENOUGH = 0.8  # of the other program's bandwidth
_HEAD_START = 1.0


def compared(context: Context, figures: dict[str, float], nbytes: int) -> Result:
    """The bandwidth is near what perftest or fi_pingpong has between the same hosts."""
    verbs = context.fabric == "verbs"
    names = ["ib_write_bw", "ib_write_lat"] if verbs else ["fi_pingpong"]
    hosts = context.hosts
    if context.fabric not in ("verbs", "libfabric"):
        return Result("reference", SKIP, f"nothing to compare {context.fabric} with")
    lacking = hosts.together(lambda: [name for name in names if not shutil.which(name)], 30)
    if any(lacking[:2]):
        package = "perftest" if verbs else "libfabric-bin"
        text = f"no {' or '.join(names)} on both hosts: apt-get install {package}"
        return Result("reference", SKIP, text)
    measure = _perftest if verbs else _pingpong
    try:
        theirs = measure(context, nbytes)
    except StepError as error:
        return Result("reference", SKIP, f"{' and '.join(names)} did not work: {error}")
    context.figures["reference"] = theirs
    share = figures["write_gbps"] / theirs["gbps"]
    text = (
        f"{names[0]} {theirs['gbps']:.2f} GB/s, here {100 * share:.0f} % of it; "
        f"{names[-1]} {theirs['us']:.1f} µs, here {figures['write_us']:.1f} µs"
    )
    if share >= _ENOUGH:
        return Result("reference", PASS, text)
    why = "steps with large tensors take longer than the card allows"
    fix = {"shell": "rdma-transport info    # on both hosts: ports, MTU; see docs/tuning.md"}
    return Result("reference", WARN, text, why, fix)


def _perftest(context: Context, nbytes: int) -> dict[str, float]:
    def words(program: str, size: int, count: int) -> list[str]:
        port = next(each for each in json.loads(_native.survey_json())["ports"] if each["chosen"])
        options = ["-d", port["device"], "-i", str(port["port"]), "-s", str(size), "-n", str(count)]
        if port["link_layer"] == "RoCE":
            options += ["-x", str(port["used_gid"])]
        return [program, "-F", *options]

    bandwidth = _turn(context, lambda: words("ib_write_bw", nbytes, 200), _row(nbytes, 3))
    latency = _turn(context, lambda: words("ib_write_lat", 8, 1000), _row(8, 4))
    return {"gbps": bandwidth * 2**20 / 1e9, "us": latency}


def _pingpong(context: Context, nbytes: int) -> dict[str, float]:
    provider = re.match(r"\S+", context.routes[0]["route"])

    def words(size: int) -> list[str]:
        name = provider.group() if provider else "tcp"
        return ["fi_pingpong", "-p", name, "-e", "rdm", "-S", str(size), "-I", "200"]

    bandwidth = _turn(context, lambda: words(nbytes), _last(-3))
    latency = _turn(context, lambda: words(64), _last(-2))
    return {"gbps": bandwidth / 1e3, "us": latency}


def _turn(
    context: Context, words: Callable[[], list[str]], figure: Callable[[str], float]
) -> float:
    """Run a program on host 0, as the server, and on host 1; return what that one printed."""
    server = context.descriptions[0]["address"]

    def step() -> float:
        rank = context.hosts.rank
        if rank > 1:
            return 0.0
        if rank == 1:
            time.sleep(_HEAD_START)
        words_here = [*words(), *([server] if rank else [])]
        try:
            ran = subprocess.run(
                words_here, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise FabricError(f"{words_here[0]} did not end within {_SECONDS:g} s") from None
        if ran.returncode:
            text = (ran.stderr or ran.stdout).strip().splitlines() or [f"code {ran.returncode}"]
            raise FabricError(f"{words_here[0]}: {text[0]}")
        return figure(ran.stdout) if rank else 0.0

    return context.hosts.together(step, _SECONDS + _HEAD_START)[1]


def _row(nbytes: int, column: int) -> Callable[[str], float]:
    """Take a column of the row of perftest's table that begins with the size."""

    def figure(text: str) -> float:
        for line in text.splitlines():
            cells = line.split()
            if cells and cells[0] == str(nbytes):
                return float(cells[column])
        raise FabricError("perftest printed no figure")

    return figure


def _last(column: int) -> Callable[[str], float]:
    """Take a column of the last row of fi_pingpong's table."""

    def figure(text: str) -> float:
        cells: list[Any] = text.strip().splitlines()[-1].split() if text.strip() else []
        try:
            return float(cells[column])
        except (IndexError, ValueError):
            raise FabricError("fi_pingpong printed no figure") from None

    return figure
