"""Our side of the exchange with pyverbs_peer.py.

usage: fabric_side.py FOLDER
"""

import sys
from contextlib import suppress
from pathlib import Path

import numpy as np

from rdma_transport.fabric import Device
from tests.verbs.programs.files import publish, wait_for

LENGTH = 1 << 20


def main(folder: Path) -> None:
    with Device.open("verbs") as device:
        channel = device.open_channel()
        publish(folder / "ours", channel.address)
        channel.connect(wait_for(folder / "theirs"), active=True)
        channel.wait_connected()
        region = device.allocate(LENGTH, writable_by_peers=True)
        memory = np.frombuffer(region, np.uint8)
        memory[:] = 0xC3
        channel.notify(channel.share(region))
        remote = channel.remote(channel.receive())

        source = device.allocate(LENGTH)
        np.frombuffer(source, np.uint8)[:] = 0x5A
        channel.write(remote, source=source, nbytes=LENGTH // 2)
        channel.notify(b"written")
        assert channel.receive() == b"written back"
        assert (memory[: LENGTH // 4] == 0xA5).all()
        assert (memory[LENGTH // 4 :] == 0xC3).all()
        copy = device.allocate(LENGTH)
        channel.read(remote, into=copy)
        seen = np.frombuffer(copy, np.uint8)
        assert (seen[: LENGTH // 4] == 0xA5).all()
        assert (seen[LENGTH // 4 : LENGTH // 2] == 0x5A).all()
        assert (seen[LENGTH // 2 :] == 0xC3).all()
        channel.notify(b"thanks")
        print(channel.route, "exchanged")
        with suppress(OSError):
            channel.receive(timeout=5)  # the peer ends first


if __name__ == "__main__":
    main(Path(sys.argv[1]))
