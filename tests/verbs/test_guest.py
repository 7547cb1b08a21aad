"""The guests themselves: rxe0, perftest between them, the Python environments, faults."""

import time

import pytest

from tests.verbs.conftest import Pair
from tools.guest.guest import Guest, Result

pytestmark = pytest.mark.timeout(120, func_only=True)

REGISTER = """
from pyverbs import device, mr, pd
with device.Context(name="rxe0") as context, pd.PD(context) as domain:
    mr.MR(domain, 1 << 20, 1).close()
"""
BANDWIDTH = ["ib_write_bw", "-d", "rxe0", "-x", "1", "-s", "65536", "-n", "200", "-F"]


def ping(address: str, seconds: int = 10) -> list[str]:
    return ["busybox", "ping", "-c", "1", "-W", str(seconds), address]


def perftest(guests: Pair, *argv: str) -> Result:
    server, client = guests
    with_address = [*argv, server.address]
    serving = server.start(["stdbuf", "-oL", *argv])
    serving.wait_for("Waiting for client", 30)
    result = client.run(with_address, 60)
    serving.wait(30).check()
    return result.check()


def test_both_have_an_active_port(guests: Pair) -> None:
    for guest in guests:
        assert "rxe0" in guest.run(["ibv_devices"]).check().stdout
        assert "PORT_ACTIVE" in guest.run(["ibv_devinfo", "-d", "rxe0"]).check().stdout


def test_write_bandwidth_between_guests(guests: Pair) -> None:
    assert "65536" in perftest(guests, *BANDWIDTH).stdout


def test_addresses_of_both_families(guests: Pair) -> None:
    first, second = guests
    for address in (first.address, first.address6):
        second.run(ping(address)).check()


def test_debian_python_lists_the_device(guest: Guest) -> None:
    program = "import pyverbs.device as d; print([x.name for x in d.get_device_list()])"
    assert guest.run(["/usr/bin/python3", "-c", program]).check().stdout == "[b'rxe0']\n"


def test_environment_has_numpy(guest: Guest) -> None:
    assert guest.python("import numpy; print(numpy.arange(4).sum())").check().stdout == "6\n"


def test_share_and_identity(guests: Pair) -> None:
    for guest in guests:
        guest.run(["sh", "-c", 'hostname > "$0"', guest.share / f"name-{guest}"]).check()
        assert (guest.share / f"name-{guest}").read_text() == f"{guest}\n"
    assert guests[0].run(["cat", guests[0].share / "name-guest2"]).stdout == "guest2\n"


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


def test_a_process_in_the_background(guest: Guest) -> None:
    process = guest.start(["sh", "-c", "echo begun; sleep 100"], env={"A": "b"})
    process.wait_for("begun", 10)
    assert process.poll() is None
    with pytest.raises(TimeoutError, match="begun"):
        process.wait(0.1)
    process.kill()
    assert process.wait(10).returncode == -9


def test_input_environment_and_failure(guest: Guest) -> None:
    result = guest.run(
        ["sh", "-c", "cat; pwd; echo $A; exit 3"], stdin="é", env={"A": "b"}, cwd="/"
    )
    assert result == Result(3, "é/\nb\n", "")
    with pytest.raises(OSError, match="No such file"):
        guest.run(["/no/such/program"])
    with pytest.raises(TimeoutError):
        guest.run(["sleep", "100"], timeout=0.1)


def test_link_down_and_up(guests: Pair) -> None:
    first, second = guests
    second.run(ping(first.address6)).check()
    first.link(False)
    assert "PORT_DOWN" in first.run(["ibv_devinfo", "-d", "rxe0"]).stdout
    assert second.run(ping(first.address6, 1)).returncode != 0
    first.restore()
    assert "PORT_ACTIVE" in first.run(["ibv_devinfo", "-d", "rxe0"]).stdout
    second.run(ping(first.address6)).check()


def test_lost_packets(guests: Pair) -> None:
    first, second = guests
    first.lose(100)
    assert second.run(ping(first.address, 1)).returncode != 0
    first.restore()
    second.run(ping(first.address)).check()


def test_pause(guests: Pair) -> None:
    first, second = guests
    process = first.start(["sleep", "0.1"])
    first.pause()
    assert second.run(ping(first.address, 1)).returncode != 0
    time.sleep(0.5)
    first.resume()
    process.wait(30).check()


@pytest.mark.timeout(400, func_only=True)
def test_environment_has_tensorflow(guest: Guest) -> None:
    program = "import tensorflow as tf; print(int(tf.constant(42)))"
    without_keras = {"TF_USE_LEGACY_KERAS": "1"}  # which takes half of the time
    assert guest.python(program, timeout=360, env=without_keras).check().stdout == "42\n"
