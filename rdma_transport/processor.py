"""What processor this host has."""

from pathlib import Path


def model() -> str:
    """Return the model of the processor, as Linux names it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "CPU part")):
            return line.partition(":")[2].strip()
    return "unknown processor"
