"""What the claims of one run share."""

from dataclasses import dataclass, field
from typing import Any

from rdma_transport.qualify.hosts import Hosts


@dataclass
class Context:
    """One run.

    ``seconds``: about how long traffic runs. ``largest``: bytes of the largest transfer.
    ``memory``: bytes to register; 0 means up to the arena's size. ``link_down``: the network
    interface of this host to take down, or empty; ``ask``: a person can do it. ``training``:
    whether to start TensorFlow.
    """

    hosts: Hosts
    seconds: float
    largest: int
    memory: int = 0
    link_down: str = ""
    ask: bool = False
    training: bool = True
    descriptions: list[dict[str, Any]] = field(default_factory=list)
    routes: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def fabric(self) -> str:
        """The fabric between the hosts, once ``route`` has found it."""
        return str(self.routes[0]["fabric"]) if self.routes else ""
