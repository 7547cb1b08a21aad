"""Runs a command in a guest: `python -m tools.guest [--second COMMAND] -- COMMAND...`."""

import argparse
import sys
import time

from .guest import Process
from .machine import booted
from .packages import UnavailableError


def follow(process: Process, seconds: float) -> int:
    """Print what it prints until it ends; return its exit status."""
    deadline = time.monotonic() + seconds
    offsets = [0, 0]
    while True:
        returncode = process.poll()
        parts = process.output_after(*offsets)
        for number, (part, stream) in enumerate(zip(parts, (sys.stdout, sys.stderr), strict=True)):
            stream.buffer.write(part)
            stream.flush()
            offsets[number] += len(part)
        if returncode is not None:
            return returncode
        if time.monotonic() > deadline:
            print(f"{process} still runs after {seconds:g} s", file=sys.stderr)
            return 124
        time.sleep(0.2)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.guest", description=__doc__)
    parser.add_argument("--second", metavar="COMMAND", help="a shell's, for a second guest")
    parser.add_argument("--processors", type=int, default=1, help="of each guest")
    parser.add_argument("--memory", default="5G", help="of each guest")
    parser.add_argument("--timeout", type=float, default=600, metavar="SECONDS")
    parser.add_argument("command", nargs="+", help="for the first guest")
    given = parser.parse_args()
    count = 2 if given.second else 1
    try:
        with booted(count, given.processors, given.memory) as guests:
            other = guests[1].start(["sh", "-c", given.second]) if given.second else None
            returncode = follow(guests[0].start(given.command), given.timeout)
            if other:
                print("".join(other.output()), end="")
            return returncode
    except UnavailableError as error:
        print(f"no guests here: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
