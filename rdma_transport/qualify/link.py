"""A claim about a link that goes down for a while: asked for by --link-down, or by a person."""

import shutil
import subprocess
import threading
import time

import typer

from rdma_transport.doctor.result import FAIL, PASS, SKIP, Result
from rdma_transport.fabric import FabricError
from rdma_transport.qualify.context import Context
from rdma_transport.qualify.contract import ENDLESS, MIB, SLOTS
from rdma_transport.qualify.hosts import StepError
from rdma_transport.qualify.meters import STALLED, paired

_BEFORE, _DOWN, _AFTER = 3.0, 10.0, 12.0  # seconds of traffic
_RETURNS = 60.0
_ANSWER = 600.0
_BY_HAND = "by hand"
_MOST = MIB


def link(context: Context) -> Result:
    """Traffic goes on over the other rails; without one it ends, and a new channel works."""
    hosts = context.hosts
    wishes = hosts.together(lambda: _wish(context), _ANSWER)
    if not any(wishes):
        return Result(
            "link",
            SKIP,
            "no link was taken down: give one host --link-down INTERFACE, as eth1 or ib1",
        )
    by_hand = any(each == _BY_HAND for each in wishes)
    taken = ", ".join(
        f"{name} {each}" for name, each in zip(hosts.names, wishes, strict=True) if each
    )
    hosts.together(lambda: _check(context.link_down), 30)
    with paired(hosts, 1, _MOST * SLOTS) as pair:
        pair.both("order", _MOST, 1000)  # a route names all rails once they are used
        rails = 1 + pair.out.route().count(", ")
        failed: list[str] = []
        change = threading.Thread(target=_cycle, args=(context, failed), daemon=True)
        change.start()
        traffic = _BEFORE + _DOWN + (2 * _AFTER if by_hand else _AFTER)
        try:
            found = pair.both("order", _MOST, ENDLESS, traffic)
            faults = sum(each[1] for each in found)
            ended = ""
        except StepError as error:
            faults, ended = 0, str(error)
        change.join(_BEFORE + _DOWN + _RETURNS)
        notes = hosts.together(pair.into.found, STALLED)
    hosts.together(lambda: _raise(failed), 600)
    if faults or any(_faults(each) for each in notes):
        firsts = "; ".join(each["first"] for each in notes if each["first"])
        return Result("link", FAIL, f"{taken}: {firsts}", "tensors would be wrong", _REPORT)
    if not ended:
        return Result("link", PASS, f"{taken}: {_DOWN:g} s down, and traffic went on")
    if rails > 1:
        why = f"the channel had {rails} rails, and one was left"
        return Result("link", FAIL, f"{taken}: the channel ended: {ended}", why, _REPORT)
    _reconnect(context)
    return Result(
        "link", PASS, f"{taken}: one rail, so the channel ended ({ended}); a new one works"
    )


_REPORT = {"shell": "rdma-transport qualify --json > qualify.json    # attach it to a report"}


def _wish(context: Context) -> str:
    """The interface to take down, what a person does by hand, or nothing."""
    if context.link_down or not context.ask:
        return context.link_down
    text = f"Will you take down a link by hand for {_DOWN:g} s, as soon as you have answered?"
    return _BY_HAND if typer.confirm(text, err=True) else ""


def _faults(found: dict[str, int]) -> int:
    return found["early"] + found["misordered"] + found["repeated"]


def _raise(failed: list[str]) -> bool:
    if failed:
        raise FabricError(failed[0])
    return True


def _check(interface: str) -> bool:
    if interface and not shutil.which("ip"):
        raise FabricError("--link-down needs the program ip: apt-get install iproute2")
    if interface:
        _ip(interface, "up")
    return True


def _cycle(context: Context, failed: list[str]) -> None:
    """Take the link down and up again, or ask a person to; runs beside the traffic."""
    try:
        if context.link_down:
            time.sleep(_BEFORE)
            _ip(context.link_down, "down")
            try:
                time.sleep(_DOWN)
            finally:
                _ip(context.link_down, "up")
    except FabricError as error:
        failed.append(str(error))


def _ip(interface: str, state: str) -> None:
    words = ["ip", "link", "set", "dev", interface, state]
    try:
        ran = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        raise FabricError(f"{' '.join(words)}: no end after 20 s") from None
    if ran.returncode:
        raise FabricError(f"{' '.join(words)}: {ran.stderr.strip()}")


def _reconnect(context: Context) -> None:
    deadline = time.monotonic() + _RETURNS
    while True:
        try:
            with paired(context.hosts, 1, _MOST * SLOTS) as pair:
                pair.both("order", _MOST, 1000)
            return
        except StepError:
            # All hosts go on, or none: their clocks may differ.
            over = context.hosts.together(lambda: time.monotonic() > deadline, 30)
            if any(over):
                raise
            time.sleep(2)
