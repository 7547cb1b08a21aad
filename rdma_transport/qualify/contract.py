"""Claims about what travels: order and visibility, all sizes, and speed."""

import statistics
from collections.abc import Iterator
from typing import Any

from rdma_transport.doctor.result import FAIL, PASS, Result
from rdma_transport.qualify.context import Context
from rdma_transport.qualify.meters import Pair, paired

KIB, MIB, GIB = 2**10, 2**20, 2**30
SIZES = (1, 63, 4 * KIB, 64 * KIB + 1, MIB, 16 * MIB, 128 * MIB, GIB)
MOST_WRITES = 16 * MIB  # bytes of the largest write among the notifications
SLOTS = 16  # writes that are under way at a time, Meter::kSlots
ENDLESS = 2**40
FEW, MOST_TRANSFERS = 8, 1000

_DEFECT = {
    "shell": "rdma-transport qualify --json > qualify.json    # on host 0; attach it to a report"
}
_WRONG = (
    "tensors would be wrong: do not use this fabric on these hosts; check firmware and "
    "drivers, and try RDMA_TRANSPORT_FABRIC=libfabric or grpc"
)


def order(context: Context) -> Result:
    """Notifications come once, in order, and after all bytes that were written before them."""
    hosts = context.hosts
    totals: dict[str, int] = {}
    first: list[str] = []
    seconds = context.seconds * 0.5 / (hosts.size - 1)
    most = max(1, min(MOST_WRITES, context.largest // SLOTS))
    for distance in range(1, hosts.size):
        with paired(hosts, distance, most * SLOTS) as pair:
            pair.both("order", most, ENDLESS, seconds)
            found = hosts.together(pair.into.found, 1)
        for name, each in zip(hosts.names, found, strict=True):
            if each["first"]:
                first.append(f"{name}: {each['first']}")
            for key, value in each.items():
                if key != "first":
                    totals[key] = totals.get(key, 0) + value
    figure = (
        f"{totals['notes']:,} notifications with {totals['writes']:,} writes of 1 byte to "
        f"{size(most)}, {size(totals['bytes'])} in all"
    )
    context.figures["order"] = totals
    if not first:
        return Result("order", PASS, f"{figure}: each in its place, all bytes there")
    counts = ", ".join(
        f"{totals[key]:,} {key}"
        for key in ("early", "corrupt", "misordered", "repeated", "missing")
        if totals[key]
    )
    return Result("order", FAIL, f"{counts} of {figure}\n" + "\n".join(first), _WRONG, _DEFECT)


def sizes(context: Context) -> Result:
    """Writes and reads of all sizes arrive as they were sent, both ways at once."""
    hosts = context.hosts
    wrong: list[str] = []
    moved = 0
    rates: dict[str, dict[int, float]] = {"write": {}, "read": {}}
    wanted = [nbytes for nbytes in SIZES if nbytes <= context.largest]
    share = context.seconds * 0.3 / len(wanted) / len(rates) / (hosts.size - 1)
    for distance in range(1, hosts.size):
        with paired(hosts, distance, wanted[-1]) as pair:
            for nbytes in list(wanted):
                for kind in rates:
                    count = 1
                    found = pair.both(f"{kind}_bandwidth", nbytes, count)
                    slowest = max(seconds for seconds, _ in found)
                    if slowest * 2 < share and not any(faults for _, faults in found):
                        moved += nbytes * hosts.size
                        count = int(min(MOST_TRANSFERS, share / max(slowest, 1e-6)))
                        found = pair.both(f"{kind}_bandwidth", nbytes, count)
                    moved += nbytes * count * hosts.size
                    rates[kind][nbytes] = statistics.median(
                        nbytes * count / seconds for seconds, _ in found
                    )
                    wrong += [
                        f"{name}: {faults} bytes of a {kind} of {nbytes} bytes differ"
                        for name, (_, faults) in zip(hosts.names, found, strict=True)
                        if faults
                    ]
                if slowest > context.seconds * 0.05:  # the next ones take 8 times as long
                    del wanted[wanted.index(nbytes) + 1 :]
                    break
    figure = f"{size(moved)} in writes and reads of 1 byte to {size(wanted[-1])}, both ways at once"
    if wanted[-1] * 8 <= context.largest:
        figure += "; larger ones would take too long"
    context.figures["bytes_per_second"] = {
        kind: {str(nbytes): rate for nbytes, rate in rates[kind].items()} for kind in rates
    }
    if wrong:
        return Result("sizes", FAIL, f"{figure}\n" + "\n".join(wrong), _WRONG, _DEFECT)
    return Result("sizes", PASS, f"{figure}: all bytes as they were sent")


def speed(context: Context) -> Iterator[Result]:
    """Latency and bandwidth from host 0 to host 1, alone, and beside perftest or fi_pingpong."""
    from rdma_transport.qualify.references import compared

    nbytes = min(MIB, context.largest)
    with paired(context.hosts, 1, nbytes) as pair:
        figures = _speed(pair, nbytes, context.seconds)
    context.figures["speed"] = figures
    yield Result(
        "speed",
        PASS,
        f"write of 8 bytes with its notification {figures['write_us']:.1f} µs; writes of "
        f"{size(nbytes)} {figures['write_gbps']:.2f} GB/s, reads {figures['read_gbps']:.2f} GB/s",
    )
    yield compared(context, figures, nbytes)


def _speed(pair: Pair, nbytes: int, seconds: float) -> dict[str, float]:
    count = max(20, min(1000, int(20 * seconds)))
    pair.one_way("write_latency", 8, count // 10)  # warms up
    figures = {
        f"{kind}_us": 1e6 * pair.one_way(f"{kind}_latency", 8, count)
        for kind in ("write", "notify", "read")
    }
    for kind in ("write", "read"):
        each = pair.one_way(f"{kind}_bandwidth", nbytes, FEW) / FEW
        count = int(max(FEW, min(MOST_TRANSFERS, seconds * 0.05 / each)))
        took = pair.one_way(f"{kind}_bandwidth", nbytes, count)
        figures[f"{kind}_gbps"] = nbytes * count / took / 1e9
    return figures


def size(nbytes: float) -> str:
    """Return bytes as people write them, such as ``1 GiB``."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} TiB"


def _described(pair: Pair) -> list[dict[str, Any]]:
    """Return how each host is connected with the next one."""
    return pair.hosts.together(lambda: {"fabric": pair.out.fabric(), "route": pair.out.route()}, 1)


def route(context: Context) -> Result:
    """One fabric reaches each host from each other one."""
    hosts = context.hosts
    most = min(MIB, context.largest)
    found: list[str] = []
    for distance in range(1, hosts.size):
        with paired(hosts, distance, most) as pair:
            pair.both("write_bandwidth", most, 4)  # a route names all rails once they are used
            for rank, each in enumerate(_described(pair)):
                other = hosts.names[(rank + distance) % hosts.size]
                context.routes.append(each | {"from": hosts.names[rank], "to": other})
                found.append(f"{each['fabric']}, {each['route']}")
    fabrics = sorted({each["fabric"] for each in context.routes})
    text = "\n".join(dict.fromkeys(found))
    if len(fabrics) > 1:
        why = "the hosts do not have the same fabrics: see `rdma-transport doctor` on each"
        fix = {"shell": "rdma-transport doctor    # on each host"}
        return Result("route", FAIL, text, why, fix)
    return Result("route", PASS, text)
