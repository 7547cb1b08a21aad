# cython: language_level=3
"""The core's reports, as JSON texts. Thin: `rdma_transport` gives them their Python shape."""

from report cimport SettingsJson, StatsJson


def stats_json() -> str:
    """What the transport of this process did, as a JSON object."""
    return StatsJson().decode()


def settings_json() -> str:
    """Every setting with its source and value, as a JSON object."""
    return SettingsJson().decode()
