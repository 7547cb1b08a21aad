"""Describes the machine, for tables of measurements."""

import os
import platform
import socket
from typing import Any

from rdma_transport import __version__, processor


def facts() -> dict[str, Any]:
    """Return host, processor, cores, kernel, versions, and the settings in the environment."""
    from rdma_transport import wheels

    installed = wheels.installed()
    given = {k: v for k, v in sorted(os.environ.items()) if k.startswith("RDMA_TRANSPORT_")}
    return {
        "host": socket.gethostname(),
        "processor": processor.model(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "tensorflow": installed[0][1] if installed else "not installed",
        "rdma_transport": __version__,
        "settings": given,
    }


def in_a_line(known: dict[str, Any]) -> str:
    """Return `facts()` as one line of text."""
    settings = " ".join(f"{name}={value}" for name, value in known["settings"].items())
    return (
        f"{known['processor']}, {known['cores']} cores, Linux {known['kernel']}, "
        f"TensorFlow {known['tensorflow']}, rdma_transport {known['rdma_transport']}, "
        f"settings: {settings or 'defaults'}"
    )


def describe() -> str:
    """Return a description of this machine in one line."""
    return in_a_line(facts())
