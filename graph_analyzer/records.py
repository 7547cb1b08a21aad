"""The parts of a plan, as immutable values."""

from dataclasses import dataclass

VERSION = 1
MODES = ("static", "dynamic", "inline", "grpc")
MUTABILITIES = ("immutable", "variable", "reference variable")
SITE_KINDS = (
    "kernel",
    "variable",
    "constant",
    "feed",
    "function argument",
    "received",
    "staged",  # copied from an accelerator's memory before it is sent
    "unknown",
)


@dataclass(frozen=True)
class Site:
    """Where the buffer of a sent tensor is allocated.

    ``through`` are the types of the ops that forward the buffer, from the allocation to the send.
    """

    op: str
    type: str
    kind: str
    through: tuple[str, ...] = ()

    def __str__(self) -> str:
        passed = f" via {', '.join(self.through)}" if self.through else ""
        name = f"{self.op} ({self.type})" if self.op else self.kind
        return name + passed


@dataclass(frozen=True)
class Edge:
    """A tensor that one task sends to another; with ``control``, only a control dependency.

    ``shape`` is ``None`` if the rank is unknown, and a dimension is ``None`` if it is unknown.
    ``bytes`` is the size per step, or ``None`` if the shape does not determine it. A sender
    whose memory is mapped keeps ``slots`` buffers for the tensor, of ``slot_bytes`` in total, which
    include alignment. Otherwise the destination has slots, see ``Task``.
    """

    name: str
    source: str
    destination: str
    source_device: str
    destination_device: str
    dtype: str
    shape: tuple[int | None, ...] | None
    bytes: int | None
    mode: str
    reason: str
    mutability: str
    site: Site
    slots: int
    slot_bytes: int
    control: bool = False


@dataclass(frozen=True)
class Task:
    """One task's memory and traffic, in bytes.

    ``slot_bytes`` are for the slots of tensors that it receives, ``source_bytes`` for the buffers
    of tensors that it sends. Edges of one size from one task share slots: one for each of them, in
    a loop three more. The peaks are what is needed if those that are never in use at
    the same time within a step share memory. ``sent_bytes`` and ``received_bytes`` are the known
    bytes per step.
    """

    name: str
    slot_bytes: int
    slot_peak_bytes: int
    source_bytes: int
    source_peak_bytes: int
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True)
class Variable:
    """A variable, the task that holds it, and ``readers``: how many other tasks read it."""

    name: str
    task: str
    dtype: str
    shape: tuple[int | None, ...] | None
    bytes: int
    readers: int
