"""Stands in for mpi4py in programs that ``rdma-transport run --mpi4py`` starts."""

import sys
from typing import Any

__version__ = "4.0.0"


class Rc:
    """The options of ``mpi4py.rc``. Those that would change what calls mean are refused."""

    initialize = True
    threads = True
    thread_level = "multiple"
    finalize: bool | None = None
    fast_reduce = True
    recv_mprobe = True
    irecv_bufsz = 32768
    errors = "exception"

    def __init__(self, **options: Any) -> None:
        self(**options)

    def __setattr__(self, name: str, value: Any) -> None:
        if not hasattr(type(self), name) or name.startswith("_"):
            raise TypeError(f"object has no attribute {name!r}")
        if name == "errors" and value != "exception":
            raise NotImplementedError(f"rdma_transport.mpi does not offer rc.errors = {value!r}")
        object.__setattr__(self, name, value)

    def __call__(self, **options: Any) -> None:
        """Set several options."""
        for name in options:
            if not hasattr(type(self), name) or name.startswith("_"):
                raise TypeError(f"unexpected argument {name!r}")
        for name, value in options.items():
            setattr(self, name, value)


rc = Rc()
sys.modules[f"{__name__}.rc"] = rc  # type: ignore[assignment]


def get_config() -> dict[str, Any]:
    """Return an empty configuration: nothing was compiled."""
    return {}


class _Missing:
    """The last finder of modules: names those that are not here."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name.startswith(f"{__name__}."):
            raise NotImplementedError(
                f"rdma_transport.mpi does not offer {name}. A program that needs it needs mpi4py "
                "and an MPI"
            )


sys.meta_path.append(_Missing)


def __getattr__(name: str) -> Any:
    if name.startswith("__") or name in ("MPI", "run"):
        raise AttributeError(name)
    _Missing.find_spec(f"{__name__}.{name}")
