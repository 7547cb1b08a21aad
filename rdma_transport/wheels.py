"""Which TensorFlow is installed, and whether the plugin was built for it.

Nothing here imports TensorFlow. NumPy programs need none.
"""

import importlib.metadata
import importlib.util
import sys

from rdma_transport import _native

DISTRIBUTIONS = (
    *("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu", "intel-tensorflow"),
    *("tensorflow-rocm", "tensorflow-aarch64"),
)
WHEEL = "rdma_transport-*.whl"  # as `make wheel` names it; no index has it
BUILT_FOR = _native.TENSORFLOW_VERSION
MINOR = ".".join(BUILT_FOR.split(".")[:2])


def version_of(name: str) -> str:
    """Return the version of a distribution, or "" if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def installed() -> list[tuple[str, str]]:
    """Return name and version of each installed distribution that contains TensorFlow."""
    found = [(name, version) for name in DISTRIBUTIONS if (version := version_of(name))]
    return found if importlib.util.find_spec("tensorflow") else []


def requirement(name: str = "tensorflow") -> str:
    """Return what pip is to install for this plugin: ``"tensorflow==2.21.*"``, with quotes."""
    return f'"{name}==' + MINOR + '.*"'


def fits(version: str) -> bool:
    """Whether the plugin was built for this version: the C++ ABI changes with the minor version."""
    return version.split(".")[:2] == MINOR.split(".")


def refusal() -> str:
    """Return why this Python cannot use TensorFlow with the plugin, and the fix, or nothing."""
    found = installed()
    if not found:
        return (
            f"{sys.executable} has no TensorFlow. Install it: pip install {requirement()} (or "
            f"{requirement('tensorflow-cpu')})"
        )
    name, version = found[0]
    if fits(version):
        return ""
    return (
        f"{sys.executable} has {name} {version}, and rdma_transport was built for TensorFlow "
        f"{BUILT_FOR}. Install that: pip install {requirement(name)}"
    )
