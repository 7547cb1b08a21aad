"""The settings of the transport, from the table in the native library."""

import json
import os
from dataclasses import dataclass

from rdma_transport import _native


@dataclass(frozen=True)
class Setting:
    """One ``RDMA_TRANSPORT_*`` setting, as the environment of this process has it."""

    name: str
    type: str
    default: str
    meaning: str
    source: str
    value: str


@dataclass(frozen=True)
class Environment:
    """Every setting, and what is wrong with the environment.

    ``error`` is the first value that cannot be used, or empty; a server would not start with it.
    ``warnings`` are variables with this project's prefix that are no setting's.
    """

    settings: tuple[Setting, ...]
    error: str
    warnings: tuple[str, ...]

    def value(self, name: str) -> str:
        """The text in force for a setting, named without its prefix."""
        full = f"RDMA_TRANSPORT_{name}"
        return next(setting.value for setting in self.settings if setting.name == full)


def read() -> Environment:
    """Return the settings as the environment has them now. Thread-safe; raises nothing."""
    report = json.loads(_native.settings_json())
    rows = tuple(Setting(**row) for row in report["settings"])
    return Environment(rows, report["error"], tuple(report["warnings"]))


def settings() -> list[Setting]:
    """Return every setting; raise ``ValueError`` where the environment cannot be understood."""
    found = read()
    problems = [found.error, *found.warnings] if found.error else list(found.warnings)
    if problems:
        raise ValueError("; ".join(problems))
    return list(found.settings)


def silence() -> None:
    """Keep the native library from logging in this process: for tools that say themselves what is
    wrong. After ``read()``, which then would not see the user's level.
    """
    os.environ["RDMA_TRANSPORT_LOG_LEVEL"] = "off"
