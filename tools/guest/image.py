"""The guests' kernel and initramfs, made of Debian packages and kept in build/guest."""

import fcntl
import hashlib
import lzma
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import packages

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent
FOLDER = REPOSITORY / "build" / "guest"
# rxe takes its checksums from crc32_generic, but does not depend on it by name. Not virtio_net:
# QEMU 7.2 now and then stops serving its card, under load, and above all when the link goes down.
MODULES = (
    "virtio_pci",
    "9p",
    "9pnet_virtio",
    "overlay",
    "virtio_console",
    "e1000e",
    "crc32_generic",
    "rdma_rxe",
    "rdma_ucm",
    "sch_netem",
)

XZ = b"\xfd7zXZ\0"  # what a compressed kernel's packed part begins with


@dataclass(frozen=True)
class Image:
    kernel: Path
    initramfs: Path


@contextmanager
def locked() -> Iterator[None]:
    """Keep other processes from touching build/guest."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def recipe() -> str:
    contents = b"".join(path.read_bytes() for path in (Path(__file__), HERE / "init.sh"))
    return hashlib.sha256(contents).hexdigest()[:12]


def kernel_package() -> tuple[str, str]:
    """The package that linux-image-amd64 stands for, and its version."""
    depends = packages.command("apt-cache", "depends", "linux-image-amd64")
    name = re.search(r"Depends: (linux-image-\S+)", depends)
    if not name:
        raise packages.UnavailableError("apt-cache does not know linux-image-amd64")
    shown = packages.command("apt-cache", "show", "--no-all-versions", name[1])
    version = re.search(r"^Version: (\S+)", shown, re.MULTILINE)
    if not version:
        raise packages.UnavailableError(f"apt-cache does not know the version of {name[1]}")
    return name[1], version[1]


def current_kernel() -> tuple[str, str]:
    try:
        return kernel_package()
    except packages.UnavailableError:
        packages.update()
        return kernel_package()


def load_order(root: Path, release: str) -> list[Path]:
    """The files of MODULES and of what they need, each after what it needs."""
    subprocess.run(["depmod", "-b", root, release], check=True)
    ordered: dict[str, None] = {}
    for module in MODULES:
        shown = subprocess.run(
            ["modprobe", "-C", "/dev/null", "-d", root, "-S", release, "--show-depends", module],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        ordered.update(dict.fromkeys(re.findall(r"^insmod (\S+)", shown, re.MULTILINE)))
    return [Path(path) for path in ordered]


def pack(tree: Path, into: Path) -> None:
    # Not compressed: the emulated processor would take longer to unpack it than to read it.
    names = [str(path.relative_to(tree)) for path in sorted(tree.rglob("*"))]
    with open(into, "wb") as archive:
        subprocess.run(
            ["cpio", "--quiet", "-o", "-H", "newc", "--owner=0:0"],
            cwd=tree,
            input="\n".join(names).encode(),
            stdout=archive,
            check=True,
        )


def unpack_kernel(compressed: Path, into: Path) -> None:
    """Take out the kernel proper, which QEMU boots too: unpacking itself costs it 3 s."""
    contents = compressed.read_bytes()
    start = contents.index(XZ)
    into.write_bytes(lzma.LZMADecompressor().decompress(contents[start:]))


def build(name: str, work: Path) -> Path:
    """Make a folder with `kernel` and `initramfs` out of the package `name`."""
    packages.command("apt-get", "download", "-qq", name, cwd=work)
    root = work / "package"
    packages.command("dpkg", "-x", str(next(work.glob("*.deb"))), str(root))
    release = name.removeprefix("linux-image-")
    tree, made = work / "tree", work / "image"
    for folder in ("bin", "proc", "sys", "dev", "lower", "upper", "root", "modules"):
        (tree / folder).mkdir(parents=True)
    made.mkdir()
    for number, module in enumerate(load_order(root, release)):
        shutil.copy(module, tree / "modules" / f"{number:02}-{module.name}")
    shutil.copy("/bin/busybox", tree / "bin")
    shutil.copy(HERE / "init.sh", tree / "init")
    (tree / "init").chmod(0o755)
    pack(tree, made / "initramfs")
    unpack_kernel(root / "boot" / f"vmlinuz-{release}", made / "kernel")
    return made


def image() -> Image:
    """The image of the newest kernel known to apt; built unless it is there already."""
    packages.install()
    with locked():
        kept = sorted(FOLDER.glob(f"image-{recipe()}-*"), key=os.path.getmtime)
        try:
            name, version = current_kernel()
        except packages.UnavailableError:
            if not kept:
                raise
            folder = kept[-1]
        else:
            folder = FOLDER / f"image-{recipe()}-{version.replace(':', '_')}"
            if folder not in kept:
                make(name, folder)
    return Image(folder / "kernel", folder / "initramfs")


def make(name: str, folder: Path) -> None:
    print(f"building the guests' image from {name}", flush=True)
    for old in (*FOLDER.glob("image-*"), *FOLDER.glob("making-*")):
        shutil.rmtree(old)
    for again in (True, False):
        with tempfile.TemporaryDirectory(prefix="making-", dir=FOLDER) as work:
            try:
                build(name, Path(work)).rename(folder)
                return
            except packages.UnavailableError:
                if not again:
                    raise
        packages.update()  # apt's lists may name a package that the archive has replaced
