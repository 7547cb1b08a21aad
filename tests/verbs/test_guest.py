"""The guests themselves: what limits and faults do there that other tests set."""

import pytest

from tests.verbs.conftest import Pair
from tools.guest.guest import Guest

pytestmark = pytest.mark.timeout(120, func_only=True)

REGISTER = """
from pyverbs import device, mr, pd
with device.Context(name="rxe0") as context, pd.PD(context) as domain:
    mr.MR(domain, 1 << 20, 1).close()
"""


def test_limits_and_users(guest: Guest) -> None:
    show = ["sh", "-c", "ulimit -l; id -u"]
    assert guest.run(show).stdout == "unlimited\n0\n"
    assert guest.run(show, memlock=65536, uid=1000).stdout == "64\n1000\n"
    # The agent's Python must be within reach of other users as well.
    assert guest.python("print(6 * 7)", uid=1000).check().stdout == "42\n"
    register = ["/usr/bin/python3", "-c", REGISTER]
    guest.run(register, uid=1000).check()
    for uid in (0, 1000):
        assert "Cannot allocate memory" in guest.run(register, memlock=65536, uid=uid).stderr


def test_a_link_that_is_down_cuts_the_way_until_it_is_restored(guests: Pair) -> None:
    """Else tests of faults would pass without any."""
    first, second = guests

    def reached(seconds: int = 10) -> bool:
        command = ["busybox", "ping", "-c", "1", "-W", str(seconds), first.address6]
        return second.run(command).returncode == 0

    assert reached()
    first.link(False)
    assert "PORT_DOWN" in first.run(["ibv_devinfo", "-d", "rxe0"]).stdout
    assert not reached(1)
    first.restore()
    assert "PORT_ACTIVE" in first.run(["ibv_devinfo", "-d", "rxe0"]).stdout
    assert reached()
