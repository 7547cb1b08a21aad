"""Communicators by mpi4py's names."""

from typing import Any

from rdma_transport.collectives.communicator import Communicator
from rdma_transport.collectives.ranks import Ranks, host_id
from rdma_transport.error_file import abort
from rdma_transport.mpi.arrays import ArrayCollectives
from rdma_transport.mpi.constants import (
    COMM_TYPE_SHARED,
    ERR_ARG,
    ERR_COMM,
    PUBLIC,
    UNDEFINED,
    Exception,
    NotOfferedError,
    translated,
)


class Handle:
    """What the objects of one communicator share."""

    name = ""
    ranks: Ranks | None = None  # of a predefined one

    def __init__(self, native: Communicator) -> None:
        self._made: Communicator | None = native

    def native(self) -> Communicator:
        """Return the communicator."""
        assert self._made is not None
        return self._made


class Comm(ArrayCollectives):
    """A group of processes. Thread-safe, as ``Communicator`` is."""

    __module__ = PUBLIC
    _handle: Handle | None

    def __new__(cls, comm: "Comm | None" = None) -> "Comm":
        """Return another object for the same communicator, or COMM_NULL."""
        if comm is not None and not isinstance(comm, Comm):
            raise TypeError(f"{comm!r} is no communicator")
        made = object.__new__(cls)
        made._handle = None if comm is None else comm._handle
        return made

    @classmethod
    def _of(cls, handle: Handle | None) -> Any:
        made = cls.__new__(cls)
        made._handle = handle
        return made

    def _valid(self) -> Handle:
        if self._handle is None:
            raise Exception(ERR_COMM, "this is COMM_NULL: the process is not in the communicator")
        return self._handle

    @property
    def _native(self) -> Communicator:
        return self._valid().native()

    def __bool__(self) -> bool:
        return self._handle is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Comm) and other._handle is self._handle

    __hash__ = None  # type: ignore[assignment]

    def Get_rank(self) -> int:
        """Return the rank of this process."""
        handle = self._valid()
        return handle.ranks.rank if handle.ranks else handle.native().rank

    def Get_size(self) -> int:
        """Return the number of processes."""
        handle = self._valid()
        return handle.ranks.size if handle.ranks else handle.native().size

    def Get_name(self) -> str:
        """Return the name: empty except for COMM_WORLD, COMM_SELF and COMM_NULL."""
        return "MPI_COMM_NULL" if self._handle is None else self._handle.name

    rank = property(Get_rank)
    size = property(Get_size)
    name = property(Get_name)

    def Is_inter(self) -> bool:
        """Return False."""
        self._valid()
        return False

    # --- Groups ---

    def Split(self, color: int = 0, key: int = 0) -> "Intracomm":
        """See mpi4py."""
        with self._arguments():
            if color < 0 and color != UNDEFINED:
                raise Exception(ERR_ARG, f"color {color}: give 0 or more, or UNDEFINED")
        return self._split(Intracomm, color, key)

    def Split_type(self, split_type: int, key: int = 0, info: Any = None) -> "Intracomm":
        """Return a communicator of the ranks of this host: the type is COMM_TYPE_SHARED."""
        with self._arguments():
            if split_type not in (COMM_TYPE_SHARED, UNDEFINED) or info is not None:
                raise NotOfferedError(
                    f"Split_type({split_type}, info={info})", "only COMM_TYPE_SHARED is offered"
                )
        hosts = self.allgather(host_id())
        color = hosts.index(hosts[self.rank])
        return self._split(Intracomm, UNDEFINED if split_type == UNDEFINED else color, key)

    def Dup(self, info: Any = None) -> Any:
        """See mpi4py."""
        with self._arguments():
            if info is not None:
                raise NotOfferedError("Dup with an Info")
        return self._split(type(self), 0, self.rank)

    def Clone(self) -> Any:
        """See mpi4py."""
        return self.Dup()

    def Free(self) -> None:
        """Leave the communicator. The object is COMM_NULL then."""
        handle = self._valid()
        if handle.ranks is not None:
            raise Exception(ERR_COMM, f"{self.name} cannot be freed")
        handle.native().close()
        self._handle = None

    def Disconnect(self) -> None:
        """Do what ``Free()`` does."""
        self.Free()

    def Abort(self, errorcode: int = 0) -> None:
        """End this process at once, and the calls of all others with an error.

        ``rdma-transport run`` then ends the others, and exits with the code.
        """
        abort(errorcode)

    def _split(self, cls: Any, color: int, key: int) -> Any:
        with translated():
            made = self._native.split(None if color == UNDEFINED else color, key)
        return cls._of(None if made is None else Handle(made))

    def __repr__(self) -> str:
        if self._handle is None:
            return "<COMM_NULL>"
        return f"<{type(self).__name__} {self.name} rank {self.rank} of {self.size}>"


class Intracomm(Comm):
    """A group of processes: all communicators are such."""

    __module__ = PUBLIC


COMM_NULL = Comm()
