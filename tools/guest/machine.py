"""Boots guests in QEMU, and ends them."""

import fcntl
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from .channel import Channel
from .guest import Guest
from .image import FOLDER, REPOSITORY, Image, image, locked

BOOT_SECONDS = 120
CARDS = 2  # of each guest; see start.sh
CONSOLE_LINES = 60


def option(path: Path) -> str:
    """A path inside one of QEMU's lists of options."""
    return str(path).replace(",", ",,")


def qemu(
    image: Image, number: int, share: Path, agent: int, links: list[int], smp: int, memory: str
) -> list[str]:
    console = option(share / f"console-{number}")
    append = (
        "console=ttyS0 quiet panic=-1 oops=panic mitigations=off nowatchdog"
        f' guest_number={number} guest_share="{share}" guest_repository="{REPOSITORY}"'
    )
    words = [
        # The guest must not outlive the thread that booted it, however that ends.
        *("setpriv", "--pdeathsig", "KILL"),
        *("qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none"),
        *("-no-reboot", "-accel", "tcg,thread=multi", "-cpu", "max"),
        *("-smp", str(smp), "-m", memory),
        *("-kernel", str(image.kernel), "-initrd", str(image.initramfs), "-append", append),
        *("-chardev", f"file,id=console,append=on,path={console}", "-serial", "chardev:console"),
        *("-device", "virtio-serial-pci", "-chardev", f"socket,id=agent,fd={agent}"),
        *("-device", "virtserialport,chardev=agent,name=agent"),
    ]
    for card in range(CARDS):
        link = f"socket,id=link{card},fd={links[card]}" if links else f"hubport,id=link{card}"
        words += ["-netdev", link if links else f"{link},hubid={card}", "-device"]
        words += [f"e1000e,netdev=link{card},mac=52:54:00:07:0{card}:0{number},romfile="]
    for tag, path, more in (
        ("root", Path("/"), "readonly=on,multidevs=remap"),
        ("share", share, "multidevs=remap"),
    ):
        folder = f"local,id={tag},path={option(path)},security_model=none,{more}"
        words += ["-fsdev", folder, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
    return words


def start(
    image: Image, number: int, share: Path, links: list[socket.socket], smp: int, memory: str
) -> Guest:
    console = share / f"console-{number}"
    ours, theirs = socket.socketpair()
    with theirs, open(console, "ab") as said:
        agent, cables = theirs.fileno(), [link.fileno() for link in links]
        process = subprocess.Popen(
            qemu(image, number, share, agent, cables, smp, memory),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            pass_fds=[agent, *cables],
            start_new_session=True,  # Ctrl-C is for this process
        )

    def diagnosis() -> str:
        tail = console.read_text(errors="replace").splitlines()[-CONSOLE_LINES:]
        return "\n".join([f"guest{number}'s console:", *tail])

    return Guest(number, process, Channel(ours, diagnosis), share)


def end(guest: Guest) -> None:
    guest.qemu.kill()
    guest.qemu.wait()
    guest.channel.close()


@contextmanager
def fresh_share() -> Iterator[Path]:
    """A folder for one run; kept until the next run if a process of the guests dumped core."""
    with locked():
        for old in FOLDER.glob("run-*"):
            descriptor = os.open(old, os.O_RDONLY)
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(old)
            os.close(descriptor)
        share = Path(tempfile.mkdtemp(prefix="run-", dir=FOLDER))
        share.chmod(0o777)
        claim = os.open(share, os.O_RDONLY)
        fcntl.flock(claim, fcntl.LOCK_EX)
    try:
        yield share
    finally:
        if cores := sorted(share.glob("core.*")):
            print("core files until the next run:", *cores)
        else:
            shutil.rmtree(share, ignore_errors=True)
        os.close(claim)


@contextmanager
def booted(count: int = 2, smp: int = 1, memory: str = "5G") -> Iterator[list[Guest]]:
    """One guest, or two with a cable between each pair of network cards; gone afterwards."""
    made: Image = image()
    with ExitStack() as stack:
        share = stack.enter_context(fresh_share())
        cables = [socket.socketpair(type=socket.SOCK_DGRAM) for _ in range(CARDS)]
        for side in (side for cable in cables for side in cable):
            stack.enter_context(side)
        guests = []
        for number in range(1, count + 1):
            sides = [cable[number - 1] for cable in cables] if count > 1 else []
            guest = start(made, number, share, sides, smp, memory)
            stack.callback(end, guest)
            guests.append(guest)
        for side in (side for cable in cables for side in cable):
            side.close()
        deadline = time.monotonic() + BOOT_SECONDS * Guest.patience
        for guest in guests:
            guest.channel.ask("hello", deadline - time.monotonic())
        yield guests
