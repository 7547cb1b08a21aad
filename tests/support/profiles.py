"""TensorFlow's profiler on running tasks, and the transport's events in what it collects."""

import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
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


def collect(targets: list[str], enough: Callable[[list[Profile]], bool]) -> list[Profile]:
    """Profile the tasks at `targets` (``grpc://host:port``) until it is `enough`.

    The profiles are in no order.
    """
    for _ in range(_ATTEMPTS):
        with tempfile.TemporaryDirectory() as folder:
            tf.profiler.experimental.client.trace(",".join(targets), folder, _MILLISECONDS)
            profiles = [_read(path) for path in Path(folder).rglob("*.xplane.pb")]
        if len(profiles) == len(targets) and enough(profiles):
            return profiles
    raise AssertionError(f"not enough in {profiles}")


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
