"""TensorFlow's profiler on running tasks, and the transport's events in what it collects."""

import json
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.profiler.internal import _pywrap_profiler_plugin
from tensorflow.tsl.profiler.protobuf import xplane_pb2

_MILLISECONDS = 500
_ATTEMPTS = 20


@dataclass(frozen=True)
class Event:
    """An event of the profiler, with its metadata."""

    name: str
    values: dict[str, Any]
    picoseconds: int


Profile = dict[str, list[Event]]  # the transport's events of one process, by name


def collect(
    targets: list[str], enough: Callable[[list[Profile]], bool], keep: Path | None = None
) -> list[Profile]:
    """Profile the tasks at `targets` (``grpc://host:port``) until it is `enough`.

    The profiles are in no order. Their files are copied to the folder `keep`.
    """
    for _ in range(_ATTEMPTS):
        with tempfile.TemporaryDirectory() as folder:
            tf.profiler.experimental.client.trace(",".join(targets), folder, _MILLISECONDS)
            files = list(Path(folder).rglob("*.xplane.pb"))
            profiles = [_read(path) for path in files]
            if len(profiles) == len(targets) and enough(profiles):
                for path in files if keep else ():
                    shutil.copy(path, keep)
                return profiles
    raise AssertionError(f"not enough in {profiles}")


def in_trace_viewer(path: Path) -> list[dict[str, Any]]:
    """The events that TensorBoard's Trace Viewer draws of a profile's file."""
    made, well = _pywrap_profiler_plugin.xspace_to_tools_data([str(path)], "trace_viewer@")
    assert well, made
    events: list[dict[str, Any]] = json.loads(made)["traceEvents"]
    return [event for event in events if event.get("ph") == "X"]


def _read(path: Path) -> Profile:
    space = xplane_pb2.XSpace()
    space.ParseFromString(path.read_bytes())
    found: Profile = defaultdict(list)
    for plane in space.planes:
        for event in (event for line in plane.lines for event in line.events):
            name = plane.event_metadata[event.metadata_id].name
            if name.startswith("rdma "):
                values = {
                    plane.stat_metadata[stat.metadata_id].name: _value(plane, stat)
                    for stat in event.stats
                }
                found[name].append(Event(name, values, event.duration_ps))
    return found


def _value(plane: Any, stat: Any) -> Any:
    kind = stat.WhichOneof("value")
    value = getattr(stat, kind)
    return plane.stat_metadata[value].name if kind == "ref_value" else value
