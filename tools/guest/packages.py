"""The Debian packages that only the guests need."""

import os
import platform
import shutil
import subprocess

PACKAGES = (
    "busybox-static",
    "cpio",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "kmod",
    "perftest",
    "python3-pyverbs",
    "qemu-system-x86",
)
APT_SECONDS = 600


class UnavailableError(Exception):
    """This machine cannot have guests; says why."""


def command(*argv: str, cwd: str | os.PathLike[str] | None = None) -> str:
    """Run a package tool and return what it prints; raise UnavailableError if it fails."""
    try:
        ended = subprocess.run(
            argv,
            cwd=cwd,
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=APT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(str(error)) from error
    if ended.returncode != 0:
        said = ended.stderr.strip().splitlines() or ["no message"]
        raise UnavailableError(f"`{' '.join(argv)}` failed: {said[-1]}")
    return ended.stdout


def as_root(*argv: str) -> None:
    if os.geteuid() == 0:
        command(*argv)
    elif shutil.which("sudo"):
        command("sudo", "--non-interactive", *argv)
    else:
        raise UnavailableError(f"`{' '.join(argv)}` must be run as root")


def update() -> None:
    as_root("apt-get", "update", "-qq")


def installed(package: str) -> bool:
    try:
        status = command("dpkg-query", "-W", "-f=${Status}", package)
    except UnavailableError:
        return False
    return "install ok installed" in status


def install() -> None:
    """Install the missing ones."""
    if platform.machine() != "x86_64":
        raise UnavailableError(f"the guests are x86-64, this machine is {platform.machine()}")
    if not shutil.which("apt-get"):
        raise UnavailableError("apt-get is missing: the guests are made of Debian packages")
    missing = [package for package in PACKAGES if not installed(package)]
    if not missing:
        return
    print("installing Debian packages:", *missing, flush=True)
    update()
    wait = ("-o", "DPkg::Lock::Timeout=120")
    as_root("apt-get", "install", "-y", "-qq", "--no-install-recommends", *wait, *missing)
