"""The settings of the transport, from the table in the native library."""

import json
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


def settings() -> list[Setting]:
    """Return every setting; raise ``ValueError`` where the environment cannot be understood."""
    report = json.loads(_native.settings_json())
    if report["problems"]:
        raise ValueError("; ".join(report["problems"]))
    return [Setting(**row) for row in report["settings"]]
