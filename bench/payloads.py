"""Messages of several buffers, as in TF-gRPC-Bench (Biswas, Lu, Panda, arXiv 1804.01138).

Buffers are small (10 B), medium (10 KiB) or large (1 MiB). A mix has all three: `uniform` has equal
numbers, `skewed` has 60 % large, 30 % medium and 10 % small ones. A burst is
not of that paper: hundreds of tensors of 4 KiB, whose notifications fill the ring several times.
"""

from dataclasses import dataclass

from rdma_transport.errors import BadInputError

from .support.sizes import parse_size, size_name

SMALL, MEDIUM, LARGE = 10, 10 * 2**10, 2**20
CATEGORIES = {"small": SMALL, "medium": MEDIUM, "large": LARGE}
MIXES = ("uniform", "skewed")
SKEW = ((LARGE, 0.6), (MEDIUM, 0.3), (SMALL, 0.1))
BUFFERS = 10
BURST = "burst", (4 * 2**10,) * 300


@dataclass(frozen=True)
class Payload:
    """One message; `sizes` are its buffers' bytes."""

    name: str
    sizes: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """The bytes of all buffers."""
        return sum(self.sizes)


def payload(name: str, buffers: int = BUFFERS) -> Payload:
    """The burst, or the mix, the category, or the size that `name` is, of so many buffers."""
    if name == BURST[0]:
        return Payload(*BURST)
    if name in MIXES:
        return Payload(name, _mixed(name, buffers))
    size = CATEGORIES.get(name) or parse_size(name)
    return Payload(name if name in CATEGORIES else size_name(size), (size,) * buffers)


def _mixed(mix: str, buffers: int) -> tuple[int, ...]:
    all_sizes = tuple(CATEGORIES.values())
    if mix == "uniform":
        return tuple(all_sizes[i % 3] for i in range(buffers))
    found: list[int] = []
    for size, share in SKEW[:-1]:
        found += [size] * round(share * buffers)
    return tuple(found[:buffers] + [SMALL] * (buffers - len(found)))


def parse_payloads(text: str, buffers: int) -> list[Payload]:
    """Names and sizes, with commas."""
    found = []
    for name in text.split(","):
        try:
            found.append(payload(name.strip(), buffers))
        except BadInputError:
            known = ", ".join((*CATEGORIES, *MIXES, BURST[0]))
            raise BadInputError(
                f"--payloads: {name!r} is not one of {known}, and not a size such as 64KiB"
            ) from None
    return found
