"""The settings of the transport, read from the table in the native library."""

import json
import os
from dataclasses import dataclass

from rdma_transport import _native


@dataclass(frozen=True)
class Setting:
    """One ``RDMA_TRANSPORT_*`` setting and its value in the environment of this process."""

    name: str
    type: str
    default: str
    meaning: str
    source: str
    value: str


@dataclass(frozen=True)
class Environment:
    """All settings, and the errors in the environment.

    ``error`` describes the first invalid value, or is empty; a server does not start with it.
    ``warnings`` describe variables with the prefix that do not name a setting.
    """

    settings: tuple[Setting, ...]
    error: str
    warnings: tuple[str, ...]

    def value(self, name: str) -> str:
        """Return the value in effect of a setting, named without its prefix."""
        full = f"RDMA_TRANSPORT_{name}"
        return next(setting.value for setting in self.settings if setting.name == full)


def read() -> Environment:
    """Return the settings of the current environment. Thread-safe; does not raise."""
    report = json.loads(_native.settings_json())
    rows = tuple(Setting(**row) for row in report["settings"])
    return Environment(rows, report["error"], tuple(report["warnings"]))


def settings() -> list[Setting]:
    """Return all settings; raise ``ValueError`` if the environment has an invalid one."""
    found = read()
    problems = [found.error, *found.warnings] if found.error else list(found.warnings)
    if problems:
        raise ValueError("; ".join(problems))
    return list(found.settings)


def silence() -> None:
    """Turn off logging of the native library, for commands that report problems themselves.

    Call it after ``read()``, which would otherwise not see the user's log level.
    """
    os.environ["RDMA_TRANSPORT_LOG_LEVEL"] = "off"
