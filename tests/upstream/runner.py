"""Runs a test file over a protocol, in as many processes as it takes."""

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """#!{python}
import sys
sys.path.insert(0, {root!r})
from tests.upstream.bootstrap import run
run({test!r}, {protocol!r}, {stats!r}, {done!r})
"""
EVENT = re.compile(r"\[ *(RUN|OK|FAILED|SKIPPED) *\] (\w+\.\w+)")
FAILURE = re.compile(r"(?:ERROR|FAIL): (\w+) \(__main__\.(\w+)")
ERROR = re.compile(r"[A-Za-z_.]*(?:Error|Exception|Timeout)\w*(?::.*)?$")


PASSED = ("OK", "SKIPPED")


@dataclass
class Result:
    """What became of a file's tests: OK, FAILED, SKIPPED, DIED or HUNG, by "Class.test"."""

    outcomes: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    seconds: float = 0
    tensors: dict[str, int] = field(default_factory=dict)  # sent by the servers, by mode
    fallbacks: dict[str, int] = field(default_factory=dict)  # those by gRPC, by reason

    def failure(self, test: str) -> str:
        """What happened and why, "" if the test passed."""
        outcome = self.outcomes.get(test, "MISSING")
        return "" if outcome in PASSED else f"{outcome} {self.reasons.get(test, '')}"

    def counts(self) -> dict[str, int]:
        return dict(Counter(self.outcomes.values()))

    def row(self) -> list[str]:
        """Passed, skipped, failed, seconds, tensors by the fabric, and by gRPC and why."""
        ok, skipped = (self.counts().get(outcome, 0) for outcome in PASSED)
        fabric = sum(self.tensors.values()) - self.tensors.get("grpc", 0)
        numbers = (ok, skipped, len(self.outcomes) - ok - skipped, round(self.seconds), fabric)
        why = ", ".join(f"{count} {reason}" for reason, count in self.fallbacks.items())
        return [*map(str, numbers), why]


def run_file(test: Path, protocol: str, patience: float, log: Path) -> Result:
    """Run all tests of a file, starting anew behind one that ended the process.

    A test has `patience` seconds; so has what comes before the first and after the last. What the
    tests print is appended to `log`.
    """
    result, begun = Result(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        while True:
            known = len(result.outcomes)
            ended = _run_once(test, protocol, patience, Path(folder), log, result)
            if ended or len(result.outcomes) == known:
                break
        sent, fallbacks = Counter[str](), Counter[str]()
        for file in Path(folder).glob("*.json"):
            stats = json.loads(file.read_text())
            sent.update({path: each["tensors"] for path, each in stats["sent"].items()})
            fallbacks.update(stats["fallback_reasons"])
        result.tensors, result.fallbacks = dict(sent), dict(fallbacks)
    result.seconds = time.monotonic() - begun
    if not result.outcomes:
        result.outcomes["(import)"] = "DIED"
    return result


def _run_once(
    test: Path, protocol: str, patience: float, folder: Path, log: Path, result: Result
) -> bool:
    """Return whether all that was left ran to its end."""
    # TensorFlow's multi-process tests start the program itself, and take *.py for Bazel's.
    program = folder / test.stem
    done = sorted(result.outcomes)
    program.write_text(
        PROGRAM.format(
            python=sys.executable,
            root=str(ROOT),
            test=str(test),
            protocol=protocol,
            stats=str(folder),
            done=done,
        )
    )
    program.chmod(0o755)
    process = subprocess.Popen(
        [program],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "TEST_TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        process_group=0,
    )
    running, lines, hung = "", [], False
    deadline = time.monotonic() + patience
    try:
        with log.open("a") as copy:
            for line in _lines(process):
                if hung := time.monotonic() > deadline:
                    break
                copy.write(line)
                lines += [line] if line else []
                if event := EVENT.match(line):
                    deadline = time.monotonic() + patience
                    running = event[2] if event[1] == "RUN" else ""
                    if not running:
                        result.outcomes[event[2]] = event[1]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if running:
        result.outcomes[running] = "HUNG" if hung else "DIED"
        result.reasons[running] = next((line.strip() for line in reversed(lines)), "")
    result.reasons |= _reasons(lines)
    return not running


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    """Give what the process writes till it ended, and "" at least once a second.

    Processes that it leaves behind may keep the pipe open.
    """
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line)

    threading.Thread(target=read, daemon=True).start()
    while True:
        ended = process.poll() is not None
        try:
            yield lines.get(timeout=1)
        except queue.Empty:
            if ended:
                return
            yield ""


def _reasons(lines: list[str]) -> dict[str, str]:
    """The last line of each failed test's traceback, as unittest prints them at the end."""
    reasons, test = {}, ""
    for line in lines:
        if failure := FAILURE.match(line):
            test = f"{failure[2]}.{failure[1]}"
        elif test and ERROR.match(line):
            reasons[test] = line.strip()
    return reasons
