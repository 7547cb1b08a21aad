"""What an operation of a graph exchanges between ranks, and why in that way.

``rdma_transport.tensorflow`` stores this in the node of each operation that it makes, and
``rdma-transport plan`` reads it there.
"""

import json
from dataclasses import asdict, dataclass, replace

ATTRIBUTE = "_rdma_transport"


def hidden_share(step: float, apart: float, exchange: float) -> float:
    """Return the share of an exchange that a step hides, from 0 to 1.

    That is what the exchange alone takes, less what a step takes longer than one `apart`, without
    others. Times in the same unit.
    """
    return min(max(exchange - (step - apart), 0.0) / exchange, 1.0)


@dataclass(frozen=True)
class Exchange:
    """An operation. Numbers of bytes are None where the graph does not know them."""

    ranks: int
    what: tuple[str, ...]
    """The variables whose gradients it combines, or the nodes whose outputs."""
    size: int | None
    """Of these gradients or outputs."""
    given: int | None
    """Of the tensors that a rank gives to the operation instead of them."""
    scheme: str
    why: str
    expected: bool | None = None
    """Of two operations one of which runs in a step: whether it is this one, as far as is known."""

    def to_text(self) -> str:
        """Return the value of the attribute."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str | bytes) -> "Exchange":
        """Read the value of the attribute; raise ``ValueError`` or ``TypeError``."""
        found = cls(**json.loads(text))
        numbers = [found.ranks, *(each for each in (found.size, found.given) if each is not None)]
        texts = [*found.what, found.scheme, found.why]
        if not all(isinstance(each, int) and each >= 0 for each in numbers) or found.ranks == 0:
            raise ValueError(f"these are no sizes: {numbers}")
        if not all(isinstance(each, str) for each in texts):
            raise ValueError(f"these are no names: {texts}")
        return replace(found, what=tuple(found.what))
