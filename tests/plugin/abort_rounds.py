"""Many rounds of steps of which one operation fails, and how many of them did not end.

usage: python -m tests.plugin.abort_rounds [CASE...] --rounds 5000 --load 2
"""

import argparse
import os
import sys

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TF_USE_LEGACY_KERAS"] = "1"

from bench.support import python
from bench.support.load import busy
from tests.support import forked
from tests.support.aborts import CASES, HANG_SECONDS, HangError, Tally, tally


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.plugin.abort_rounds", description=__doc__
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; or all")
    parser.add_argument("--rounds", type=int, default=300, help="of each case and protocol")
    parser.add_argument("--load", type=int, default=0, help="busy loops beside them")
    parser.add_argument("--protocols", default="grpc,rdma")
    parser.add_argument("--seed", type=int, default=0, help="of random graphs")
    parser.add_argument("--limit", type=float, default=HANG_SECONDS, help="seconds until a hang")
    parser.add_argument("--show", action="store_true", help="where each process is in a hang")
    given = parser.parse_args()
    unknown = set(given.cases) - set(CASES)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    python.starter = forked.start
    print(f"{'case':20} {'over':5} {'rounds':>7} {'hangs':>6} {'slowest':>9}  errors", flush=True)
    hangs = 0

    def report(hang: HangError) -> None:
        print(hang, file=sys.stderr, flush=True)

    with busy(given.load):
        for name in given.cases or CASES:
            for protocol in given.protocols.split(","):
                found = tally(
                    CASES[name],
                    protocol,
                    given.rounds,
                    given.seed,
                    given.limit,
                    report,
                    given.show,
                )
                show(name, protocol, found)
                hangs += found.hangs
    return int(hangs > 0)


def show(name: str, protocol: str, found: Tally) -> None:
    errors = ", ".join(f"{count} {error}" for error, count in sorted(found.errors.items(), key=str))
    bad = ""
    if found.good_failed:
        bad = f"; {found.good_failed} good steps failed: {found.bad_message[:300]}"
    print(
        f"{name:20} {protocol:5} {found.rounds:7} {found.hangs:6} {found.slowest:8.3f}s  "
        f"{errors}{bad}",
        flush=True,
    )


if __name__ == "__main__":
    raise SystemExit(main())
