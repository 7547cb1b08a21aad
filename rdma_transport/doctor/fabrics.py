"""The names that the option ``--fabric`` accepts."""

from collections.abc import Callable

import typer


def fabric_or(*others: str) -> Callable[[str], str]:
    """Return the callback of an option that takes a fabric's name, one of `others`, or nothing."""

    def check(name: str) -> str:
        from rdma_transport.fabric import FABRICS

        known = (*others, *FABRICS)
        if name and name not in known:
            raise typer.BadParameter(f"'{name}' is not one of {', '.join(known)}")
        return name

    return check
