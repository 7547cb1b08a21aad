"""What a table of measurements must say about where it was measured."""

import os
import platform
from importlib.metadata import version
from pathlib import Path


def describe() -> str:
    """One line: processor, cores, kernel, versions, settings that differ from the defaults."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    given = [f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith("RDMA_TRANSPORT_")]
    return (
        f"{model}, {os.cpu_count()} cores, Linux {platform.release()}, "
        f"TensorFlow {version('tensorflow')}, rdma_transport {version('rdma_transport')}, "
        f"settings: {' '.join(given) or 'defaults'}"
    )
